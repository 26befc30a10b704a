"""Experiment: for which prompts and loads do prefill pools pay, compared to one pool on the same accelerators?

    load 1 = every accelerator busy:   requests a second = load x accelerators / busy_s
    busy_s = prompt x prefill_ms + output x (step_ms / BATCH + decode_ms_per_sequence)

Each arm is a simulated fleet in which the gateway's own code decides. Requests are equal and arrive at even gaps, so
only the arms differ. `functions.decisions.routing.disaggregation` decides; `shoal simulate prefill` prints the table.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from functions.api.ids import PoolName, TenantId
from functions.api.snapshot import RoutingEntry
from functions.simulator.fleet.engine_profile import EngineProfile
from functions.simulator.fleet.setting import PoolSetting, Setting
from functions.simulator.fleet.simulation import Simulation
from functions.simulator.workload.request import WorkloadRequest

BATCH = 16  # assumed number of streams that share a decode step
_MODEL, _PREFILL = PoolName("model"), PoolName("model-prefill")
ROUTING = RoutingEntry("prefill", ("*",), prefill_min_prompt_tokens=256)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillArm:
    """Result of one load with one arrangement of the accelerators."""

    prompt_tokens: int
    load: float
    reading: int  # accelerators in the prefill pool; 0: one pool
    ttft_p50_ms: float
    ttft_p99_ms: float
    gap_p99_ms: float
    split_ratio: float  # share of the requests
    lost_ratio: float  # shed or lost


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillExperiment:
    profile: EngineProfile
    accelerators: int = 4
    output_tokens: int = 150
    requests: int = 300
    kv_bytes_per_token: int = 131_072
    kv_transfer_bytes_per_s: float = 12.5e9

    def per_s(self, prompt_tokens: int, load: float) -> float:
        """Return the requests per second, with prompts of this length, that use the share `load` of all
        accelerators."""
        profile = self.profile
        decode_ms = self.output_tokens * (profile.step_ms / BATCH + profile.decode_ms_per_sequence)
        return load * self.accelerators * 1000.0 / (prompt_tokens * profile.prefill_ms_per_token + decode_ms)

    def arm(self, prompt_tokens: int, load: float, reading: int) -> PrefillArm:
        per_s = self.per_s(prompt_tokens, load)
        pools: tuple[PoolSetting, ...] = (
            PoolSetting(name=_MODEL, profile=self.profile, replicas=self.accelerators - reading),
        )
        if reading:
            pools += (
                PoolSetting(
                    name=_PREFILL,
                    profile=self.profile,
                    replicas=reading,
                    model=_MODEL,
                    role="prefill",
                    kv_bytes_per_token=self.kv_bytes_per_token,
                    kv_transfer_bytes_per_s=self.kv_transfer_bytes_per_s,
                ),
            )
        outcome = Simulation(Setting(pools=pools, routing=ROUTING), self._workload(prompt_tokens, per_s)).run()
        band, gap_s = outcome.bands[0], outcome.gaps.quantile_s(0.99)
        return PrefillArm(
            prompt_tokens=prompt_tokens,
            load=load,
            reading=reading,
            ttft_p50_ms=round(band.ttft.quantile(0.5) or 0.0, 1),
            ttft_p99_ms=round(band.ttft.quantile(0.99) or 0.0, 1),
            gap_p99_ms=round((gap_s or 0.0) * 1000, 1),
            split_ratio=round(outcome.splits["pays"] / max(1, band.asked), 3),
            lost_ratio=round(1.0 - band.served / max(1, band.asked), 3),
        )

    def table(self, lengths: Iterable[int], loads: Iterable[float]) -> Iterator[PrefillArm]:
        """Yield for each length and load one pool, then each split with up to half of the accelerators reading."""
        shares = list(loads)
        for prompt_tokens in lengths:
            for load in shares:
                for reading in range(self.accelerators // 2 + 1):
                    yield self.arm(prompt_tokens, load, reading)

    def _workload(self, prompt_tokens: int, per_s: float) -> Iterator[WorkloadRequest]:
        for number in range(self.requests):
            yield WorkloadRequest((number + 1) / per_s, TenantId(f"t{number % 4}"), prompt_tokens, self.output_tokens)
