"""Fit of step costs to measured first tokens and gaps: least squares, no cost below nothing.

    first token alone   = overhead + step + prompt tokens x prefill
    gap among n streams = step + n x sequence + n x context tokens x kv

`overhead` is what a request costs besides steps (HTTP, tokenizing, scheduling): part of no step, but of the first
token. Each point is the median of its repetitions, and counts relative to its own size: a fit to within 5 % of 20 ms
and of 2 s alike. A cost that would come out below nothing is left out, and the others fitted again.

Worked example (test_a_profile_is_found_again): points made of 8 ms a step, 0.05 ms a prompt token, 0.1 ms a sequence
and 3 ms of overhead give these back.

Neighbours: `measure` gets the points; `functions.simulator.fleet.engine_profile` has the step's formula.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Of a request alone at the engine."""

    prompt_tokens: int
    ttft_ms: float


@dataclass(frozen=True, slots=True)
class Gap:
    """Between tokens of streams that run together."""

    sequences: int
    context_tokens: float  # of each, on average
    gap_ms: float


@dataclass(frozen=True, slots=True)
class StepFit:
    overhead_ms: float
    step_ms: float
    prefill_ms_per_token: float
    decode_ms_per_sequence: float
    decode_ms_per_kv_token: float
    ttft_error_ratio: float  # mean, of the points it was fitted to
    gap_error_ratio: float


class TooFewPoints(ValueError):
    """There is nothing to fit a line to; the message says what is missing."""


def fit(firsts: Sequence[FirstToken], gaps: Sequence[Gap]) -> StepFit:
    """TooFewPoints where lines have no two ends."""
    if len({each.prompt_tokens for each in firsts}) < 2:
        raise TooFewPoints("first tokens of at least two lengths of prompt are needed")
    if len({each.sequences for each in gaps}) < 2:
        raise TooFewPoints("gaps among at least two numbers of streams are needed")
    measured_gaps = [each.gap_ms for each in gaps]
    rows = [[1.0, each.sequences, each.sequences * each.context_tokens] for each in gaps]
    step, sequence, kv = not_below_nothing(rows, measured_gaps)
    measured_firsts = [each.ttft_ms for each in firsts]
    begin, prefill = not_below_nothing([[1.0, each.prompt_tokens] for each in firsts], measured_firsts)
    return StepFit(
        overhead_ms=max(0.0, begin - step),
        step_ms=step,
        prefill_ms_per_token=prefill,
        decode_ms_per_sequence=sequence,
        decode_ms_per_kv_token=kv,
        ttft_error_ratio=_error([begin + each.prompt_tokens * prefill for each in firsts], measured_firsts),
        gap_error_ratio=_error([float(np.dot(row, (step, sequence, kv))) for row in rows], measured_gaps),
    )


def not_below_nothing(rows: Sequence[Sequence[float]], measured: Sequence[float]) -> list[float]:
    """The weighted least squares solution of unknowns from 0 on: the most negative is left out, one by one."""
    weights = 1.0 / np.maximum(np.asarray(measured, dtype=np.float64), 1e-9)
    matrix, target = np.asarray(rows, dtype=np.float64) * weights[:, None], np.ones(len(rows))
    found = np.zeros(matrix.shape[1])
    used = list(range(matrix.shape[1]))
    while used:
        part, *_ = np.linalg.lstsq(matrix[:, used], target, rcond=None)
        if part.min() >= 0.0:
            found[used] = part
            break
        del used[int(part.argmin())]
    return [float(each) for each in found]


def _error(fitted: Sequence[float], measured: Sequence[float]) -> float:
    return float(np.mean([abs(one / other - 1.0) for one, other in zip(fitted, measured, strict=True)]))
