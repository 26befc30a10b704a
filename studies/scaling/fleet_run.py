"""A pool request by request under an autoscaler: `simulator.fleet` with the autoscaler as an actor.

Every 15 seconds of virtual time it receives a controller's signals, and starts or drains replicas. Starting replicas
cost from the moment they are requested, as in `fluid_pool`, so that both can be compared.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from functions.api.snapshot import AdmissionEntry, BandEntry
from functions.simulator.fleet.engine_profile import EngineProfile
from functions.simulator.fleet.setting import POOL, PoolSetting, Setting
from functions.simulator.fleet.simulation import Simulation
from functions.simulator.fleet.start_times import StartTimes
from functions.simulator.plan.pace import work_s
from functions.simulator.workload.request import WorkloadRequest
from studies.scaling.day_outcome import DayOutcome
from studies.scaling.fluid_pool import PERIOD_S
from studies.scaling.load import BATCH
from studies.scaling.scaler import Scaler

_LATER_SLACK_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDay:
    """Constant input of a run."""

    profile: EngineProfile
    replicas: int  # ready at the beginning
    startup_s: float
    slo_s: float
    block_tokens: int = 64
    gateways: int = 1


class FleetRun:
    """One run; `figures` are available afterwards."""

    def __init__(self, day: FleetDay, workload: Iterable[WorkloadRequest], scaler: Scaler) -> None:
        self._scaler = scaler
        self._profile = day.profile
        self.outcome = DayOutcome()
        engine_s = StartTimes().engine_s
        start = StartTimes(accelerator_s=0.0, s3_s=max(0.0, day.startup_s - engine_s), engine_s=engine_s)
        self._simulation = Simulation(
            Setting(
                pools=(PoolSetting(name=POOL, profile=day.profile, replicas=day.replicas, start=start, source="s3"),),
                gateways=day.gateways,
                admission=_promising(day.slo_s),
                block_tokens=day.block_tokens,
                signals_s=float(PERIOD_S),
            ),
            self._weighed(workload),
            ((float(PERIOD_S), self._adjust_replicas),),
        )

    @property
    def under_way(self) -> int:
        return self._simulation.under_way

    def run(self) -> DayOutcome:
        result = self._simulation.run()
        soon, later = result.bands[0], result.bands[BATCH]
        outcome = self.outcome
        outcome.asked, outcome.in_time = soon.asked, soon.in_time
        outcome.refused = sum(soon.shed.values())
        outcome.later_asked, outcome.later_in_time = later.asked, later.in_time
        outcome.replica_s = self._simulation.accelerator_seconds(POOL)
        return outcome

    def figures(self) -> dict[str, Any]:
        """Return the fleet's figures, in addition to those of the day."""
        return self._simulation.outcome.figures()

    def _adjust_replicas(self, simulation: Simulation) -> None:
        signals = simulation.signals(POOL)
        counts = simulation.counts(POOL)
        self.outcome.note(counts.ready + counts.starting + counts.draining, signals, signals.queue_seconds or 0.0)
        desired = self._scaler.decide_replicas(signals, simulation.now_s)
        change = desired - counts.ready - counts.starting
        self.outcome.scaled(change)
        for _ in range(change):
            simulation.start_replica(POOL)
        ready = simulation.ready_ids(POOL)
        for replica_id in ready[len(ready) - min(max(0, -change), len(ready) - 1) :]:
            simulation.drain(replica_id)

    def _weighed(self, workload: Iterable[WorkloadRequest]) -> Iterable[WorkloadRequest]:
        for asked in workload:
            self.outcome.work_s += work_s(asked.prompt_tokens, asked.output_tokens, self._profile)
            yield asked


def _promising(slo_s: float) -> AdmissionEntry:
    promised_ms = round(slo_s * 1000)
    return AdmissionEntry(
        name="day",
        pools=("*",),
        bands=(
            BandEntry("interactive", 0.6, ttft_slo_ms=promised_ms, max_wait_ms=promised_ms),
            BandEntry("near-real-time", 0.3),
            BandEntry("batch", 0.1, ttft_slo_ms=_LATER_SLACK_S * 1000, max_wait_ms=_LATER_SLACK_S * 1000),
        ),
    )
