"""Check of a fitted profile against requests that it was not fitted to.

The held-out requests go to the simulator's engine at the times at which they went to the real one; `overhead` of the
fit comes on top of each first token. Errors are of the median and of the 99th percentile, of first tokens, gaps and
whole answers: (simulated - measured) / measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from functions.simulator.calibration.fit import StepFit
from functions.simulator.calibration.measure import Answered, Wanted
from functions.simulator.fleet.engine_profile import EngineProfile
from functions.simulator.fleet.fluid_engine import FluidEngine, Work
from functions.simulator.fleet.token_gaps import TokenGaps


@dataclass(frozen=True, slots=True)
class Compared:
    measured_ms: float
    simulated_ms: float

    @property
    def error_ratio(self) -> float:
        return self.simulated_ms / self.measured_ms - 1.0 if self.measured_ms else 0.0


Comparison = Mapping[str, Compared]  # "ttft_p50", "ttft_p99", "itl_p50", ...


def profile_of(fit: StepFit, *, step_budget_tokens: int, max_sequences: int, kv_tokens: int) -> EngineProfile:
    """ValueError where the budget leaves nothing to read."""
    return EngineProfile(
        step_ms=fit.step_ms,
        prefill_ms_per_token=fit.prefill_ms_per_token,
        decode_ms_per_sequence=fit.decode_ms_per_sequence,
        decode_ms_per_kv_token=fit.decode_ms_per_kv_token,
        step_budget_tokens=step_budget_tokens,
        max_sequences=max_sequences,
        kv_tokens=kv_tokens,
    )


def compare(
    profile: EngineProfile, overhead_ms: float, requests: Sequence[Wanted], answers: Sequence[Answered]
) -> Comparison:
    """Both in the order in which they were asked."""
    first_s, last_s, gaps = simulated(profile, requests)
    ttfts = [at_s - request.at_s + overhead_ms / 1000 for at_s, request in zip(first_s, requests, strict=True)]
    wholes = [at_s - request.at_s + overhead_ms / 1000 for at_s, request in zip(last_s, requests, strict=True)]
    found = {}
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        measured_ttft = quantile([answer.ttft_s for answer in answers], share)
        measured_gap = quantile([gap for answer in answers for gap in answer.gaps_s], share)
        measured_whole = quantile([answer.e2e_s for answer in answers], share)
        found[f"ttft_{name}"] = _compared(measured_ttft, quantile(ttfts, share))
        found[f"itl_{name}"] = _compared(measured_gap, gaps.quantile_s(share) or 0.0)
        found[f"e2e_{name}"] = _compared(measured_whole, quantile(wholes, share))
    return dict(sorted(found.items()))


def simulated(profile: EngineProfile, requests: Sequence[Wanted]) -> tuple[list[float], list[float], TokenGaps]:
    """When each has its first token and its last, and all gaps."""
    gaps = TokenGaps()
    engine = FluidEngine(profile, gaps)
    first_s, last_s = [0.0] * len(requests), [0.0] * len(requests)
    number = 0
    while number < len(requests) or engine.next_s < inf:
        if number < len(requests) and requests[number].at_s < engine.next_s:
            request = requests[number]
            engine.add(Work(number, request.prompt_tokens, request.output_tokens, number), request.at_s)
            number += 1
        else:
            engine.advance(engine.next_s)
        for work in engine.first:
            first_s[work.number] = engine.now_s
        for work in engine.over:
            last_s[work.number] = engine.now_s
        engine.first, engine.over = [], []
    return first_s, last_s, gaps


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest that so large a share is not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _compared(measured_s: float, simulated_s: float) -> Compared:
    return Compared(measured_s * 1000, simulated_s * 1000)
