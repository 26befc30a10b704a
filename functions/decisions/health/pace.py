"""Pace of an engine: the time of a unit of its work over the last seconds, to compare it with its pool.

    queue_ms     waiting in the engine's queue, a request
    prefill_ms   prefill, a prompt token computed; FLOOR_TOKENS more a request are its fixed cost
    gap_ms       between two tokens of a stream
    busy_ratio   prefill seconds of the requests that ended / seconds; never less than the share of samples at which
                 the engine had work, and at most 1

The pace includes the mean number of running and waiting requests, since more work explains a slower pace. The
engine's sums are read once a second and cover requests that ended, so a pace covers the requests that ended in its
interval.

Worked example (test_worked_example_of_ten_seconds): 40 requests ended that had waited 2 s and computed 4 s in all,
for 10,000 tokens; 1,000 gaps took 30 s. Queue 50 ms, prefill 4000 / (10,000 + 40 x 256) = 0.198 ms, gap 30 ms.

Sums and samples together show how busy a prefill-only engine is. vLLM's gauges are set at the end of a step, so a
prompt read in one step is never seen running; a prompt of many seconds enters the sums only when it ends. Prompts
that share a step each count it, so a full engine seems full a little early. Worked example
(test_prefill_counts_as_busy_by_counters_or_samples): 20 prompts of 0.3 s ended in 10 s, and no sample
found one running: 0.6. One prompt of 30 s runs at every sample: 1.

Neighbours: the agent measures (`functions.replica.monitor`), heartbeats carry the pace, `slow_replica` compares.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import msgspec

PACE_EVERY_S = 10.0
FLOOR_TOKENS = 256
_LEAST_S = 1e-3

_Millis = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
_Mean = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=10**9)]


class Pace(msgspec.Struct, frozen=True):
    """Pace of the last interval; None for values that were not measured."""

    number: _Count  # grows by one with each interval
    requests: _Count
    tokens: _Count  # number of gaps between tokens
    running: _Mean
    waiting: _Mean
    queue_ms: _Millis | None = None
    prefill_ms: _Millis | None = None
    gap_ms: _Millis | None = None
    busy_ratio: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] | None = None  # None from an older agent


@dataclass(frozen=True, slots=True)
class WorkCounters:
    """Sums since the engine started, and the requests that run and wait now."""

    finished: float
    queue_s: float
    prefill_s: float
    computed_tokens: float
    gap_s: float
    gaps: float
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class PaceMeter:
    """Measurement in progress. Updated by `observe` about once a second."""

    pace: Pace | None = None  # the last whole interval
    base: WorkCounters | None = None
    base_s: float = 0.0
    looks: int = 0
    running_sum: int = 0
    waiting_sum: int = 0
    busy_looks: int = 0


def observe(meter: PaceMeter, counters: WorkCounters, now_s: float, every_s: float = PACE_EVERY_S) -> PaceMeter:
    """Return the meter after another sample, with a new pace every `every_s`. Sums that fell mean a restarted engine:
    measuring starts anew, and there is no pace."""
    base = meter.base
    if base is None or counters.finished < base.finished or counters.gap_s < base.gap_s:
        return PaceMeter(meter.pace if base is None else None, counters, now_s)
    looks = meter.looks + 1
    running, waiting = meter.running_sum + counters.running, meter.waiting_sum + counters.waiting
    busy = meter.busy_looks + (counters.running + counters.waiting > 0)
    if now_s - meter.base_s < every_s:
        return replace(meter, looks=looks, running_sum=running, waiting_sum=waiting, busy_looks=busy)
    number = meter.pace.number + 1 if meter.pace is not None else 1
    read_ratio = (counters.prefill_s - base.prefill_s) / max(now_s - meter.base_s, _LEAST_S)
    pace = _pace(number, base, counters, running / looks, waiting / looks)
    return PaceMeter(msgspec.structs.replace(pace, busy_ratio=min(1.0, max(read_ratio, busy / looks))), counters, now_s)


def _pace(number: int, base: WorkCounters, now: WorkCounters, running: float, waiting: float) -> Pace:
    requests, gaps = int(now.finished - base.finished), int(now.gaps - base.gaps)
    tokens = max(0.0, now.computed_tokens - base.computed_tokens)
    return Pace(
        number=number,
        requests=requests,
        tokens=max(0, gaps),
        running=running,
        waiting=waiting,
        queue_ms=_ratio(now.queue_s - base.queue_s, requests),
        prefill_ms=_ratio(now.prefill_s - base.prefill_s, tokens + FLOOR_TOKENS * requests if requests else 0.0),
        gap_ms=_ratio(now.gap_s - base.gap_s, gaps),
    )


def _ratio(seconds: float, units: float) -> float | None:
    return min(1e9, max(0.0, seconds) * 1000 / units) if units > 0 else None
