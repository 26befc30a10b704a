"""How fast the engine is, from what its histograms gained between two looks: what routing predicts with.

    prefill_ms_per_token = prefill seconds gained / prompt tokens computed
    service_ms           = mean end-to-end time / mean number running     (Little's law: time between completions)

Each gain moves the estimate by an exponential average whose weight grows with the number of requests behind it.
Worked example (test_worked_example_from_the_prologue): 4 requests finished, 2.0 s end to end in all, 1 or 3 running
at the two looks: 500 ms / 2 = 250 ms each. From 50 ms with weight 1 - 0.8^4 = 0.59 the estimate becomes 168 ms.
"""

from dataclasses import dataclass, replace

_KEEP_RATIO = 0.8  # of the old estimate per finished request: ten requests replace 90 % of it
_MAX_WEIGHED = 64  # the power underflows long before that matters
MIN_MS, MAX_MS = 0.001, 600_000.0


@dataclass(frozen=True, slots=True)
class RateCounters:
    """Sums since the engine started, and how many run now."""

    finished: float
    e2e_s: float
    prefill_s: float
    computed_prompt_tokens: float
    running: int


@dataclass(frozen=True, slots=True)
class EngineRates:
    service_ms: float = 50.0
    prefill_ms_per_token: float = 0.5
    last: RateCounters | None = None


def update(rates: EngineRates, counters: RateCounters) -> EngineRates:
    """The rates after another look; counters that fell belong to a restarted engine and teach nothing."""
    last = rates.last
    seen = replace(rates, last=counters)
    if last is None or counters.finished < last.finished or counters.e2e_s < last.e2e_s:
        return seen
    finished = counters.finished - last.finished
    if finished > 0:
        running = max(1.0, (counters.running + last.running) / 2)
        measured_ms = (counters.e2e_s - last.e2e_s) / finished * 1000 / running
        seen = replace(seen, service_ms=_average(rates.service_ms, measured_ms, finished))
    tokens = counters.computed_prompt_tokens - last.computed_prompt_tokens
    if finished > 0 and tokens > 0:
        measured_ms = (counters.prefill_s - last.prefill_s) / tokens * 1000
        seen = replace(seen, prefill_ms_per_token=_average(rates.prefill_ms_per_token, measured_ms, finished))
    return seen


def _average(old: float, measured: float, count: float) -> float:
    weight: float = 1 - _KEEP_RATIO ** min(count, _MAX_WEIGHED)
    return min(MAX_MS, max(MIN_MS, old + weight * (measured - old)))
