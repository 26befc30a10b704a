"""Engine rates from the growth of its histograms between two samples; routing predicts with them.

    prefill_ms_per_token = prefill seconds gained / prompt tokens computed
    service_ms           = mean end-to-end time / mean number running     (Little's law: time between completions)

Each sample moves the estimate by an exponential average, with a weight that grows with the number of its requests.
Worked example (test_worked_example_from_the_prologue): 4 requests finished, 2.0 s end to end in all, 1 or 3 running
at the two samples: 500 ms / 2 = 250 ms each. From 50 ms with weight 1 - 0.8^4 = 0.59 the estimate becomes 168 ms.

Prompts of which almost nothing was computed do not count for prefill. A replica that decodes prompts read elsewhere
(`routing.disaggregation`) computes one token of each in a whole step, and would seem to take ten times as long per
token (test_prefill_rate_ignores_prompts_read_elsewhere).

A replica that was slow once receives no requests and would never be measured again. So while an engine is idle, the
prefill estimate moves back towards the best measured value, by a twentieth at each sample. An engine that another
process on its machine slowed down is used again within a minute
(test_prefill_rate_of_an_idle_engine_decays_to_its_best). The best value itself decays by 1 % at each measurement, so
that a lasting slowdown is adopted.
"""

from dataclasses import dataclass, replace

_KEEP_RATIO = 0.8  # weight of the old estimate per finished request: ten requests replace 90 % of it
_MAX_WEIGHED = 64  # the power underflows far beyond this
_RELAX_RATIO = 0.05  # share of the way to the best per sample of an idle engine: half after 14 samples
_BEST_FADES = 1.01
_TELLING_TOKENS = 8  # mean tokens computed per prompt: with fewer, the step dominates the time
MIN_MS, MAX_MS = 0.001, 600_000.0


@dataclass(frozen=True, slots=True)
class RateCounters:
    """Sums since the engine started, and the number running now."""

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
    best_prefill_ms: float | None = None  # per token; None before the first measurement


def update(rates: EngineRates, counters: RateCounters) -> EngineRates:
    """Return the rates after another sample; while the engine is idle, they return slowly to the best measured.
    Counters that fell mean a restarted engine and change no rate."""
    last = rates.last
    seen = replace(rates, last=counters)
    if last is None or counters.finished < last.finished or counters.e2e_s < last.e2e_s:
        return seen
    finished = counters.finished - last.finished
    if finished == 0 and counters.running == 0 == last.running:
        return _relaxed(seen)
    if finished > 0:
        running = max(1.0, (counters.running + last.running) / 2)
        measured_ms = (counters.e2e_s - last.e2e_s) / finished * 1000 / running
        seen = replace(seen, service_ms=_average(rates.service_ms, measured_ms, finished))
    tokens = counters.computed_prompt_tokens - last.computed_prompt_tokens
    if finished > 0 and tokens >= _TELLING_TOKENS * finished:
        measured_ms = (counters.prefill_s - last.prefill_s) / tokens * 1000
        best_ms = (
            measured_ms if rates.best_prefill_ms is None else min(measured_ms, rates.best_prefill_ms * _BEST_FADES)
        )
        average_ms = _average(rates.prefill_ms_per_token, measured_ms, finished)
        seen = replace(seen, prefill_ms_per_token=average_ms, best_prefill_ms=max(MIN_MS, best_ms))
    return seen


def _relaxed(rates: EngineRates) -> EngineRates:
    best_ms, now_ms = rates.best_prefill_ms, rates.prefill_ms_per_token
    if best_ms is None or best_ms >= now_ms:
        return rates
    return replace(rates, prefill_ms_per_token=now_ms + _RELAX_RATIO * (best_ms - now_ms))


def _average(old: float, measured: float, count: float) -> float:
    weight: float = 1 - _KEEP_RATIO ** min(count, _MAX_WEIGHED)
    return min(MAX_MS, max(MIN_MS, old + weight * (measured - old)))
