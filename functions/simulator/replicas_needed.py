"""Find the replicas that keep an SLO at a load, by simulation.

    estimate  = load x seconds of work in one request / (1 second x a replica)       where the search starts
    answer    = the fewest with which 99 of 100 first tokens come within the SLO, and 99 of 100 gaps between tokens
                are within theirs, with at least 99 of 100 requests served

Beyond 16 replicas, a slice of the load for sixteen replicas is simulated and the answer scaled up. That is on the
safe side, because larger fleets even out more. Each try has two minutes of requests, but at least 1,500 and at most
20,000. Shoal's own router is used without an admission queue: waiting in the gateway is waiting all the same.
`prefill_sizing` does the same for two pools, one of which reads prompts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, exp

from functions.decisions.capacity.accelerators import accelerator
from functions.decisions.capacity.memory import MemoryPlan, Serving, plan_memory
from functions.decisions.capacity.model_shape import known_shape
from functions.decisions.capacity.speed import Speed, speed_of
from functions.simulator.fleet.engine_profile import EngineProfile
from functions.simulator.fleet.outcome import Outcome
from functions.simulator.fleet.simulation import Setting, simulate
from functions.simulator.workload.synthetic import BLOCK_TOKENS, Traffic, synthetic

SLICE_REPLICAS = 16
_LEAST_S, _LEAST_REQUESTS, _MOST_REQUESTS = 120.0, 1500, 20_000
_SPREAD = 0.8  # standard deviation of the logarithm of lengths
_P99 = 2.33  # standard deviations
_MOST_TIMES = 16  # upper limit, relative to the first estimate


class Unreachable(ValueError):
    """No number of replicas keeps the SLO: one request alone takes too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedLoad:
    requests_per_s: float
    prompt_tokens: int  # median
    output_tokens: int  # median
    ttft_slo_s: float
    itl_slo_s: float | None = None  # None means no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    replicas: int
    ttft_p99_ms: float
    itl_p99_ms: float | None
    tokens_per_s: float  # prompt and output, at the offered load
    simulated_replicas: int  # fewer if only a slice was simulated


def profile_from(speed: Speed, memory: MemoryPlan, serving: Serving) -> EngineProfile:
    sequences = min(serving.max_sequences, max(1, serving.batched_tokens - 1))
    return EngineProfile(
        step_ms=speed.step_ms,
        prefill_ms_per_token=speed.ms_per_prompt_token,
        decode_ms_per_sequence=speed.ms_per_sequence,
        decode_ms_per_kv_token=speed.ms_per_kv_token,
        step_budget_tokens=serving.batched_tokens,
        max_sequences=sequences,
        kv_tokens=memory.kv_tokens,
    )


def estimated_profile(model: str, product: str, serving: Serving) -> EngineProfile:
    """Return the profile of a public model on an accelerator, by its data sheet and without measurement."""
    shape, device = known_shape(model), accelerator(product)
    return profile_from(speed_of(shape, serving, device), plan_memory(shape, serving, device), serving)


def replicas_needed(profile: EngineProfile, load: OfferedLoad, seed: int, progress: Callable[[str], None]) -> Needed:
    """Return the replicas that keep the SLO in simulations of the load; raise Unreachable if no number is enough."""
    check_one_request(profile, load)
    estimate = max(1, ceil(load.requests_per_s * work_s(profile, load)))
    part = min(1.0, SLICE_REPLICAS / estimate)
    tried: dict[int, Outcome] = {}

    def keeps(replicas: int) -> bool:
        progress(f"{replicas} replicas at {load.requests_per_s * part:,.1f} requests/s")
        tried[replicas] = _try(profile, load, load.requests_per_s * part, replicas, seed)
        return keeps_slos(tried[replicas], load)

    found = fewest(keeps, max(1, ceil(estimate * part)))
    outcome = tried[found]
    gap_s = outcome.gaps.quantile_s(0.99)
    return Needed(
        replicas=ceil(found / part - 1e-9),
        ttft_p99_ms=outcome.bands[0].ttft.quantile(0.99) or 0.0,
        itl_p99_ms=gap_s * 1000 if gap_s is not None else None,
        tokens_per_s=load.requests_per_s * mean_tokens(load),
        simulated_replicas=found,
    )


def fewest(keeps: Callable[[int], bool], guess: int) -> int:
    """Return the least number of replicas that keeps the SLO, within 2.5 %. Raise Unreachable if `_MOST_TIMES` the
    guess does not."""
    low, high = 0, guess  # `low` replicas do not keep the SLO
    while not keeps(high):
        low, high = high, high * 2
        if high > guess * _MOST_TIMES:
            raise Unreachable(
                f"not even {low} replicas keep the promise, although requests hardly ever overlap there: "
                f"promise more time, or use a faster replica"
            )
    while high - low > max(1, high // 40):
        middle = (low + high) // 2
        if keeps(middle):
            high = middle
        else:
            low = middle
    return high


def check_one_request(profile: EngineProfile, load: OfferedLoad) -> None:
    """Raise Unreachable if an idle replica is too slow for the first token of the longest prompt in a hundred, or per
    token."""
    longest_tokens = int(load.prompt_tokens * exp(_P99 * _SPREAD))
    alone_ms = profile.step_ms * ceil(longest_tokens / profile.step_budget_tokens)
    alone_ms += longest_tokens * profile.prefill_ms_per_token
    if alone_ms > load.ttft_slo_s * 1000:
        raise Unreachable(
            f"with a median of {load.prompt_tokens:,} prompt tokens one in a hundred has {longest_tokens:,}, for which "
            f"an idle replica takes {alone_ms:,.0f} ms to the first token; {load.ttft_slo_s * 1000:,.0f} are promised: "
            f"use more parallelism, a faster accelerator or a smaller model"
        )
    step_ms = profile.step_ms + profile.decode_ms_per_sequence + load.prompt_tokens * profile.decode_ms_per_kv_token
    if load.itl_slo_s is not None and step_ms > load.itl_slo_s * 1000:
        raise Unreachable(
            f"an idle replica takes {step_ms:,.0f} ms a token, and {load.itl_slo_s * 1000:,.0f} are promised: use more "
            f"parallelism, fewer bits a weight, or a smaller model"
        )


def work_s(profile: EngineProfile, load: OfferedLoad) -> float:
    """Return the seconds of replica time per request, in a batch as large as its memory holds."""
    context = load.prompt_tokens + load.output_tokens
    batch = max(1, min(profile.max_sequences, profile.kv_tokens // max(1, context)))
    step_ms = profile.step_ms + batch * profile.decode_ms_per_sequence
    step_ms += batch * context * profile.decode_ms_per_kv_token
    return (load.prompt_tokens * profile.prefill_ms_per_token + load.output_tokens * step_ms / batch) / 1000


def traffic(load: OfferedLoad, requests_per_s: float) -> Traffic:
    requests = min(_MOST_REQUESTS, max(_LEAST_REQUESTS, requests_per_s * _LEAST_S))
    return Traffic(
        requests_per_s=requests_per_s, seconds=requests / requests_per_s, turns=1, system_tokens=0,
        question_tokens=load.prompt_tokens, answer_tokens=load.output_tokens, spread=_SPREAD,
    )  # fmt: skip


def mean_tokens(load: OfferedLoad) -> float:
    """Return the mean tokens per request; lengths are log-normal, so the mean is above the median."""
    return (load.prompt_tokens + load.output_tokens) * exp(_SPREAD**2 / 2)


def _try(profile: EngineProfile, load: OfferedLoad, requests_per_s: float, replicas: int, seed: int) -> Outcome:
    setting = Setting(
        replicas=replicas, profile=profile, admission=None, block_tokens=BLOCK_TOKENS, extra_s=load.ttft_slo_s
    )
    return simulate(setting, synthetic(traffic(load, requests_per_s), seed))


def keeps_slos(outcome: Outcome, load: OfferedLoad) -> bool:
    band = outcome.bands[0]
    slowest_ms, gap_s = band.ttft.quantile(0.99), outcome.gaps.quantile_s(0.99)
    if slowest_ms is None or slowest_ms > load.ttft_slo_s * 1000 or band.served < 0.99 * band.asked:
        return False
    return load.itl_slo_s is None or gap_s is None or gap_s <= load.itl_slo_s
