"""A fleet of several regions at the planned size: its pools, and the requests of each region.

    pools       load falls by rank (rank + 1)^-0.8, as for base models; replicas in proportion, two at least
    regions     alike: each has its own gateways, replicas and tenants' traffic
    models      the base of each pool, and adapters over it, which 17 % of all chats use

A lost region's clients continue. Those with requests in flight retry elsewhere within two seconds of the DNS failover
(`failover_s`), as do those that send meanwhile; later requests reach the other regions directly. The hash of its
session selects a request's region, so that a chat stays together. Worked example
(test_requests_of_a_lost_region_are_sent_once): of four regions one is lost; each of the others then has four thirds
of its load.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from zlib import crc32

from functions.api.ids import PoolName
from functions.decisions.capacity.memory import Serving
from functions.simulator.fleet.engine_profile import EngineProfile
from functions.simulator.fleet.setting import AdapterTimes, PoolSetting, Setting
from functions.simulator.replicas_needed import estimated_profile
from functions.simulator.workload.request import WorkloadRequest
from functions.simulator.workload.synthetic import BLOCK_TOKENS, Traffic, merged, synthetic

_POOL_ZIPF = 0.8
_AGAIN_WITHIN_S = 2.0
_PROMPT_TOKENS, _QUESTION_TOKENS, _ANSWER_TOKENS = 256, 100, 120


def eight_billion_on_h100() -> EngineProfile:
    """Return Llama 3.1 8B in 16 bits, by data sheet (`decisions.capacity`): 8.3 ms a step, 0.036 ms a prompt token."""
    return estimated_profile("llama-3.1-8b", "NVIDIA-H100-80GB-HBM3", Serving(batched_tokens=2048))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    requests_per_s: float = 100_000.0
    replicas: int = 5_000
    seconds: float = 60.0
    regions: int = 4
    pools: int = 20
    gateways: int = 4  # in each region
    tenants: int = 50_000
    models: int = 10_000
    profile: EngineProfile = field(default_factory=eight_billion_on_h100)
    lost_at_s: float | None = None  # time of the loss of the last region
    failover_s: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        least = 2 * self.pools * self.regions
        if self.replicas < least:
            raise ValueError(f"{self.replicas} replicas: {self.regions} regions of {self.pools} pools need {least}")
        if self.lost_at_s is not None and self.regions < 2:
            raise ValueError("a region can be lost where there are two or more")

    @property
    def lost_region(self) -> int | None:
        return self.regions - 1 if self.lost_at_s is not None else None


def pool_name(number: int) -> PoolName:
    return PoolName(f"base-{number:02d}")


def pool_shares(scale: Scale) -> list[float]:
    weights: list[float] = [(rank + 1) ** -_POOL_ZIPF for rank in range(scale.pools)]
    return [weight / sum(weights) for weight in weights]


def region_setting(scale: Scale, region: int, *, until_s: float) -> Setting:
    adapters = scale.models // scale.pools - 1
    times = AdapterTimes(
        names=tuple(f"a{number}" for number in range(adapters)), gpu_slots=16, cpu_slots=64, resident=True
    )
    return Setting(
        pools=tuple(
            PoolSetting(
                name=pool_name(number), profile=scale.profile, replicas=count, adapters=times if adapters > 0 else None
            )
            for number, count in enumerate(replicas_of_pools(scale, region))
        ),
        gateways=scale.gateways,
        block_tokens=BLOCK_TOKENS,
        seed=scale.seed * scale.regions + region,
        until_s=until_s,
    )


def replicas_of_pools(scale: Scale, region: int) -> list[int]:
    """Return replicas in proportion to load, two at least; the sum is exactly the region's part."""
    total = scale.replicas // scale.regions + (region < scale.replicas % scale.regions)
    shares = pool_shares(scale)
    counts = [max(2, int(total * share)) for share in shares]
    while sum(counts) > total:
        counts[max(range(scale.pools), key=lambda number: counts[number])] -= 1
    while sum(counts) < total:
        counts[max(range(scale.pools), key=lambda number: shares[number] * total - counts[number])] += 1
    return counts


def own_requests(scale: Scale, region: int) -> Iterator[WorkloadRequest]:
    """Yield the requests of the region's nearest clients, lost or not."""
    rate = scale.requests_per_s / scale.regions
    parts = [
        synthetic(
            Traffic(
                requests_per_s=rate * share, seconds=scale.seconds, tenants=scale.tenants, turns=2, thinking_s=3.0,
                system_tokens=_PROMPT_TOKENS, question_tokens=_QUESTION_TOKENS, answer_tokens=_ANSWER_TOKENS,
                adapters=max(0, scale.models // scale.pools - 1), pool=pool_name(number),
            ),
            (scale.seed * scale.regions + region) * scale.pools + number,
        )
        for number, share in enumerate(pool_shares(scale))
    ]  # fmt: skip
    for asked in merged(*parts):
        if asked.session is not None:
            asked.session = f"{region}-{asked.pool}-{asked.session}"
        yield asked


def requests_of(scale: Scale, region: int, broken: Iterable[WorkloadRequest] = ()) -> Iterator[WorkloadRequest]:
    """Return all requests of a region; `broken` were in flight in the lost one."""
    lost, lost_at_s = scale.lost_region, scale.lost_at_s
    if lost is None or lost_at_s is None:
        return own_requests(scale, region)
    if region == lost:
        return (asked for asked in own_requests(scale, region) if asked.at_s < lost_at_s)
    again = sorted(_again(scale, region, broken, lost_at_s), key=lambda asked: asked.at_s)
    return merged(own_requests(scale, region), again, _later(scale, region, lost, lost_at_s))


def _again(scale: Scale, region: int, broken: Iterable[WorkloadRequest], lost_at_s: float) -> Iterator[WorkloadRequest]:
    lost = scale.regions - 1
    during = (each for each in own_requests(scale, lost) if lost_at_s <= each.at_s < lost_at_s + scale.failover_s)
    for asked in (*broken, *during):
        if _goes_to(scale, asked) == region:
            asked.at_s = lost_at_s + scale.failover_s + Random(asked.at_s).random() * _AGAIN_WITHIN_S  # noqa: S311
            yield asked


def _later(scale: Scale, region: int, lost: int, lost_at_s: float) -> Iterator[WorkloadRequest]:
    for asked in own_requests(scale, lost):
        if asked.at_s >= lost_at_s + scale.failover_s and _goes_to(scale, asked) == region:
            yield asked


def _goes_to(scale: Scale, asked: WorkloadRequest) -> int:
    return crc32((asked.session or asked.tenant).encode()) % (scale.regions - 1)
