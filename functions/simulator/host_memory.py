"""Experiment: for which chats, and with how fast a link, does host memory behind the KV cache pay?

    under way   = chats a second x turns x (thinking + answering)        chats whose next turn is still to come
    their KV    = under way x mean prompt

If their KV exceeds a pool's KV cache, turns find nothing in the cache unless host memory has it. Host memory holds
copies of what enters the cache, so a host memory that is no larger than the cache gains nothing.

Each arm is a simulated fleet whose gateway routes by the engines' events. All arms of a load get the same chats, so
only the memory and the link differ. `computed` is the share of prompt tokens that engines computed, which is the use
of accelerators.

Worked example (test_chats_under_way_match_the_prologue): 2 requests a second, 120 s between two turns and 150 tokens
per answer: 2 x (120 + 150 x 0.015) = 244 chats. Related modules: `functions.decisions.routing.prediction` prices a
hit, `functions.simulator.fleet.prefix_cache` has both memories, the CLI's `simulate_tables` prints the table.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from functions.api.ids import PoolName
from functions.simulator.fleet.engine_profile import EngineProfile
from functions.simulator.fleet.setting import PoolSetting, Setting
from functions.simulator.fleet.simulation import Simulation
from functions.simulator.workload.request import WorkloadRequest
from functions.simulator.workload.synthetic import BLOCK_TOKENS, Traffic, synthetic

GIB = 2**30
ANSWER_TOKEN_S = 0.015  # as in `workload.synthetic`
_POOL = PoolName("model")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostArm:
    """Result of one load with one size of host memory and one link."""

    requests_per_s: float
    host_gib: float
    gigabytes_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    computed_ratio: float  # share of all prompt tokens
    reloaded_ratio: float
    lost_ratio: float  # shed or lost


@dataclass(frozen=True, slots=True, kw_only=True)
class HostExperiment:
    profile: EngineProfile
    replicas: int = 2
    seconds: float = 300.0
    thinking_s: float = 120.0
    turns: int = 8
    system_tokens: int = 1024
    answer_tokens: int = 150
    kv_bytes_per_token: int = 131_072
    seed: int = 1

    def under_way(self, requests_per_s: float) -> float:
        """Return the mean number of chats at this rate whose next turn is still to come."""
        return requests_per_s * (self.thinking_s + self.answer_tokens * ANSWER_TOKEN_S)

    def arm(self, requests_per_s: float, host_gib: float, gigabytes_per_s: float) -> HostArm:
        pool = PoolSetting(
            name=_POOL,
            profile=self.profile,
            replicas=self.replicas,
            host_kv_tokens=int(host_gib * GIB / self.kv_bytes_per_token),
            reload_ms_per_token=self.kv_bytes_per_token / (gigabytes_per_s * 1e6),
        )
        simulation = Simulation(Setting(pools=(pool,), block_tokens=BLOCK_TOKENS), self._chats(requests_per_s))
        outcome = simulation.run()
        caches = [replica.engine.cache for replica in simulation.lifecycle.members[_POOL].values()]
        asked = sum(cache.asked_tokens for cache in caches if cache is not None)
        hit = sum(cache.hit_tokens for cache in caches if cache is not None)
        reloaded = sum(cache.reloaded_tokens for cache in caches if cache is not None)
        band = outcome.bands[0]
        return HostArm(
            requests_per_s=requests_per_s,
            host_gib=host_gib,
            gigabytes_per_s=gigabytes_per_s,
            ttft_p50_ms=round(band.ttft.quantile(0.5) or 0.0, 1),
            ttft_p99_ms=round(band.ttft.quantile(0.99) or 0.0, 1),
            computed_ratio=round(1.0 - hit / max(1, asked), 3),
            reloaded_ratio=round(reloaded / max(1, asked), 3),
            lost_ratio=round(1.0 - band.served / max(1, band.asked), 3),
        )

    def table(self, loads: Iterable[float], sizes_gib: Iterable[float], links: Iterable[float]) -> Iterator[HostArm]:
        """Yield for each load the arm without host memory, then each size with each link."""
        sizes, rates = [size for size in sizes_gib if size > 0], list(links)
        for load in loads:
            yield self.arm(load, 0.0, rates[0])
            for size in sizes:
                for rate in rates:
                    yield self.arm(load, size, rate)

    def _chats(self, requests_per_s: float) -> Iterator[WorkloadRequest]:
        traffic = Traffic(
            requests_per_s=requests_per_s,
            seconds=self.seconds,
            turns=self.turns,
            thinking_s=self.thinking_s,
            system_tokens=self.system_tokens,
            answer_tokens=self.answer_tokens,
        )
        return synthetic(traffic, self.seed)
