"""Check a fitted profile against requests that were not used for the fit.

The held-out requests arrive at the simulated engine at the same times as at the real one. The fit's `overhead` is
added to each first token and each whole answer. Errors are (simulated - measured) / measured, for the median and the
99th percentile of first tokens, gaps and whole answers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from functions.simulator.calibration.fit import StepFit
from functions.simulator.calibration.measure import Answered, HeldOutRequest
from functions.simulator.fleet.engine_profile import EngineProfile
from functions.simulator.fleet.fluid_engine import FluidEngine, FluidSequence
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
    """Return the profile with the fitted step costs and these limits. Raise ValueError if the step budget leaves no
    tokens for prompts."""
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
    profile: EngineProfile, overhead_ms: float, requests: Sequence[HeldOutRequest], answers: Sequence[Answered]
) -> Comparison:
    """Compare measured and simulated p50 and p99 of first token, gap and whole answer. Requests and answers are in the
    order in which they were sent."""
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


def simulated(profile: EngineProfile, requests: Sequence[HeldOutRequest]) -> tuple[list[float], list[float], TokenGaps]:
    """Simulate the requests on one engine. Return the second of each one's first token, of its last token, and all
    gaps."""
    gaps = TokenGaps()
    engine = FluidEngine(profile, gaps)
    first_s, last_s = [0.0] * len(requests), [0.0] * len(requests)
    number = 0
    while number < len(requests) or engine.next_s < inf:
        if number < len(requests) and requests[number].at_s < engine.next_s:
            request = requests[number]
            engine.add(FluidSequence(number, request.prompt_tokens, request.output_tokens, number), request.at_s)
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
    """Return the sorted values' element at the index `share` times their number, at most the last; 0 if there are
    none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _compared(measured_s: float, simulated_s: float) -> Compared:
    return Compared(measured_s * 1000, simulated_s * 1000)
