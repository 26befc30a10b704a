"""Fit step costs to measured first tokens and gaps by least squares with nonnegative costs.

    first token alone   = overhead + step + prompt tokens x prefill
    gap among n streams = step + n x sequence + n x context tokens x kv

`overhead` is a request's cost outside of steps (HTTP, tokenizing, scheduling); it delays only the first token. Each
point is the median of its repetitions and is weighted relative to its own size, so an error of 5 % counts alike at 20
ms and at 2 s. A cost that would be negative is dropped, and the others are fitted again.

Worked example (test_fit_recovers_a_known_profile): points made of 8 ms per step, 0.05 ms per prompt token, 0.1 ms per
sequence and 3 ms of overhead yield these values. `functions.simulator.fleet.engine_profile` has the step's formula.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class FirstToken:
    """First token of a request that is alone at the engine."""

    prompt_tokens: int
    ttft_ms: float


@dataclass(frozen=True, slots=True)
class Gap:
    """Gap between tokens of streams that run together."""

    sequences: int
    context_tokens: float  # mean per sequence
    gap_ms: float


@dataclass(frozen=True, slots=True)
class StepFit:
    overhead_ms: float
    step_ms: float
    prefill_ms_per_token: float
    decode_ms_per_sequence: float
    decode_ms_per_kv_token: float
    ttft_error_ratio: float  # mean over the points of the fit
    gap_error_ratio: float


class TooFewPoints(ValueError):
    """There are too few points to fit a line; the message says which are missing."""


def fit(firsts: Sequence[FirstToken], gaps: Sequence[Gap]) -> StepFit:
    """Fit the step costs; raise TooFewPoints if there are fewer than two prompt lengths or numbers of streams."""
    if len({each.prompt_tokens for each in firsts}) < 2:
        raise TooFewPoints("first tokens of at least two lengths of prompt are needed")
    if len({each.sequences for each in gaps}) < 2:
        raise TooFewPoints("gaps among at least two numbers of streams are needed")
    measured_gaps = [each.gap_ms for each in gaps]
    rows = [[1.0, each.sequences, each.sequences * each.context_tokens] for each in gaps]
    step, sequence, kv = nonnegative_least_squares(rows, measured_gaps)
    measured_firsts = [each.ttft_ms for each in firsts]
    begin, prefill = nonnegative_least_squares([[1.0, each.prompt_tokens] for each in firsts], measured_firsts)
    return StepFit(
        overhead_ms=max(0.0, begin - step),
        step_ms=step,
        prefill_ms_per_token=prefill,
        decode_ms_per_sequence=sequence,
        decode_ms_per_kv_token=kv,
        ttft_error_ratio=_error([begin + each.prompt_tokens * prefill for each in firsts], measured_firsts),
        gap_error_ratio=_error([float(np.dot(row, (step, sequence, kv))) for row in rows], measured_gaps),
    )


def nonnegative_least_squares(rows: Sequence[Sequence[float]], measured: Sequence[float]) -> list[float]:
    """Solve least squares of relative errors with nonnegative unknowns: while one is negative, the most negative
    becomes 0."""
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
