"""Arms of the spike study: the same fleet, traffic and start-up time, with different reactions.

    ladder      shoal as it ships: admission queue, ladder, fallback, warm replicas, its own autoscaling
    room        HPA with shoal's admission queue and fallback, without the ladder: isolates the ladder's effect
    hpa         Kubernetes' HorizontalPodAutoscaler on requests a second; every request is dispatched
    kpa         Knative's autoscaler on requests in flight; every request is dispatched

Arms without a warm pool have as many more serving replicas from the beginning: the accelerators are the same.

Neighbours: `scaling.others` decides for HPA and KPA; `spike` runs an arm.
"""

from dataclasses import dataclass, replace
from typing import Literal

from functions.api.ids import PoolName
from functions.decisions.autoscaling.forecast import reactive_only
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.decisions.autoscaling.signals import PoolSignals
from functions.decisions.overload.ladder import LadderState, Means, Rungs, step
from functions.simulator.fleet.simulation import Simulation
from functions.simulator.plan.scaler import OwnScaler
from studies.scaling.scaler import Scaler

ArmName = Literal["ladder", "room", "hpa", "kpa"]
ARMS: tuple[ArmName, ...] = ("ladder", "room", "hpa", "kpa")
TITLES: dict[ArmName, str] = {
    "ladder": "shoal's ladder",
    "room": "admission queue + HPA",
    "hpa": "HPA",
    "kpa": "KPA-like",
}
LOOK_S = 1.0


@dataclass(slots=True)
class ScaledBy:
    """A scaler alone: it starts missing replicas and drains surplus ones, the youngest first."""

    pool: PoolName
    scaler: Scaler

    def act(self, simulation: Simulation) -> None:
        counts = simulation.counts(self.pool)
        desired = self.scaler.decide_replicas(simulation.signals(self.pool), simulation.now_s)
        bring_to(simulation, self.pool, desired - counts.ready - counts.starting)


def bring_to(simulation: Simulation, pool: PoolName, missing: int) -> None:
    """Start `missing` replicas. A negative number drains starting replicas before ready ones, as Kubernetes does."""
    for _ in range(missing):
        simulation.start_replica(pool)
    youngest_first = [*simulation.starting_ids(pool)[::-1], *simulation.ready_ids(pool)[::-1]]
    for replica_id in youngest_first[: max(0, -missing)]:
        simulation.drain(replica_id)


class LadderController:
    """Model of shoal's controller: the upper ladder steps and its own autoscaling. It scales down one at a time."""

    def __init__(self, pool: PoolName, policy: ScalePolicy, wait_s: float, promised_warm: int) -> None:
        self._pool = pool
        self._policy = policy
        self._wait_s = wait_s
        self._warm = promised_warm
        self._scaler = OwnScaler(policy, reactive_only())
        self._state = LadderState()
        self.rungs = Rungs()

    def act(self, simulation: Simulation) -> None:
        signals, now_s = simulation.signals(self._pool), simulation.now_s
        desired = self._scaler.decide_replicas(signals, now_s)
        self._state, self.rungs = step(self._state, signals, self._means(signals), now_s)
        for _ in range(self.rungs.borrow):
            simulation.promote(self._pool)
        coming = signals.ready + self.rungs.borrow + signals.starting
        wanted = max(desired, signals.ready + self.rungs.borrow + self.rungs.provision)
        wanted = min(wanted, self._policy.max_replicas)
        if wanted > coming:
            bring_to(simulation, self._pool, wanted - coming)
        elif wanted < coming and not self.rungs.on and not signals.starting and not signals.draining:
            bring_to(simulation, self._pool, -1)
        elif not self.rungs.on and signals.warm + signals.starting < self._warm:
            simulation.start_replica(self._pool, warm=True)

    def _means(self, signals: PoolSignals) -> Means:
        arrivals = signals.arrivals_per_s or 0.0
        return Means(
            wait_s=self._wait_s,
            replica_tokens_per_s=self._scaler.demand.replica_per_s if self._scaler.demand is not None else None,
            shiftable_ratio=min(1.0, (signals.degraded_per_s or 0.0) / arrivals) if arrivals else 0.0,
            startable=max(0, self._policy.max_replicas - signals.committed),
            start_s=self._policy.startup_s,
        )


def without_warm(policy: ScalePolicy, warm: int) -> ScalePolicy:
    """Return the policy with the warm accelerators serving instead."""
    return replace(policy, min_replicas=policy.min_replicas + warm, warm=0)
