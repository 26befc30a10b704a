"""Request rates for traffic that is not this fleet's own: a share of its pools' capacity. Pure.

    rate of a pool = load x most replicas / seconds of a replica's work in one request
    work           = prompt x prefill + output x (sequence + (prompt + output / 2) x kv)    by the engine's profile,
                     less the prompts' cached parts, and a share in the engine's steps
    rush           = the middle third of a window at 1.3 times the rate, the rest at 0.85 times it

A prompt's blocks that occurred earlier in the sample are assumed to be cached. So a rate is approximate, but both
sides get the same one. Work is what a request adds to the length of steps: an engine that receives one second of work
per second is full, however many sequences it has.

Worked example (test_worked_example_of_work): 1,000 prompt and 200 output tokens on h100-8b: 1,000 x 0.2 + 200 x (0.05
+ 1,100 x 0.00005) = 221 ms, so a replica does 4.5 such requests a second. Four replicas at a load of 0.7 get 12
(test_rate_is_a_share_of_the_replicas_capacity).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from functions.simulator.fleet.engine_profile import EngineProfile
from functions.simulator.plan.planned_fleet import PlannedPool
from functions.simulator.workload.request import WorkloadRequest

CALM_RATIO, RUSH_RATIO = 0.85, 1.3  # factors on the rate; (0.85 + 1.3 + 0.85) / 3 = 1
MAX_LOAD = 20.0
_LEAST_S = 1e-4


@dataclass(frozen=True, slots=True)
class Load:
    """Load of each pool, as a share of what its maximum number of replicas can do."""

    others: float = 0.7
    by_pool: tuple[tuple[str, float], ...] = ()

    def for_others(self, ratio: float) -> "Load":
        return Load(ratio, self.by_pool)

    def of(self, pool: str, ratio: float) -> "Load":
        return Load(self.others, (*self.by_pool, (pool, ratio)))

    def at(self, pool: str) -> float:
        return dict(self.by_pool).get(pool, self.others)


@dataclass(frozen=True, slots=True)
class PoolShare:
    """A pool's share of requests that name no pool, as a rate."""

    pool: PlannedPool
    requests_per_s: float


def shares_of(
    pools: Sequence[PlannedPool], sample: Sequence[WorkloadRequest], block_tokens: int, load: Load
) -> tuple[PoolShare, ...]:
    """Return the rate of requests that gives each pool its load, of pools that may have replicas and in which some
    tenant's requests start."""
    return tuple(
        PoolShare(pool, load.at(pool.name) * pool.most / request_work_s(pool.engine.profile, sample, block_tokens))
        for pool in pools
        if pool.is_asked
    )


def work_s(prompt_tokens: float, output_tokens: float, profile: EngineProfile) -> float:
    attended_tokens = prompt_tokens + output_tokens / 2
    a_token_ms = profile.decode_ms_per_sequence + attended_tokens * profile.decode_ms_per_kv_token
    return (prompt_tokens * profile.prefill_ms_per_token + output_tokens * a_token_ms) / 1000


def request_work_s(profile: EngineProfile, sample: Sequence[WorkloadRequest], block_tokens: int) -> float:
    """Return the mean seconds of replica time per request of the sample, in full batches and with cached prefixes."""
    seen: set[int] = set()
    total_s = 0.0
    for request in sample:
        known = next((place for place, block in enumerate(request.blocks) if block not in seen), len(request.blocks))
        seen.update(request.blocks)
        cached = min(request.prompt_tokens - 1, known * block_tokens)
        context = request.prompt_tokens + request.output_tokens
        beside = max(1.0, min(profile.max_sequences, profile.kv_tokens / context))  # sequences in the same steps
        steps_ms = request.output_tokens * profile.step_ms / beside
        total_s += work_s(request.prompt_tokens, request.output_tokens, profile)
        total_s += (steps_ms - cached * profile.prefill_ms_per_token) / 1000
    return max(_LEAST_S, total_s / max(1, len(sample)))


def rushed(part: float) -> float:
    """Map a time to the curve with a rush; both are shares of the window, and `part` is at an even rate."""
    calm, rush = CALM_RATIO / 3, RUSH_RATIO / 3
    if part < calm:
        return part / CALM_RATIO
    if part < calm + rush:
        return 1 / 3 + (part - calm) / RUSH_RATIO
    return 2 / 3 + (part - calm - rush) / CALM_RATIO
