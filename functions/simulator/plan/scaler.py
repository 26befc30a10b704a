"""Autoscaling of a simulated pool by its AutoscalingPolicy: the controller's own decision in virtual time.

Every PERIOD_S the decision on the pool's signals gives the wanted number of replicas. Missing replicas are promoted
from warm ones first, then started; surplus ones are drained, those that are still starting first. Promoted warm
replicas are replaced. A pool without replicas is checked each second for waiting requests, and one is started
immediately. `functions.controller.autoscaling` does the same in production.
"""

from functions.decisions.admission.bands import rules_of
from functions.decisions.autoscaling.decide import ScalerState, Scaling, decide
from functions.decisions.autoscaling.forecast import Demand, forecast_demand, update_demand
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.decisions.autoscaling.signals import PoolSignals
from functions.simulator.fleet.simulation import Simulation
from functions.simulator.plan.planned_fleet import PlannedPool

PERIOD_S = 15.0
_WAKE_S = 1.0


class OwnScaler:
    """The controller's decision with its state. `demand` is the forecast's memory; None: rules alone."""

    def __init__(self, policy: ScalePolicy, demand: Demand | None) -> None:
        self.policy = policy
        self.demand = demand
        self.state = ScalerState()
        self.scaling: Scaling | None = None

    def decide_replicas(self, signals: PoolSignals, now_s: float) -> int:
        forecast = None
        if self.demand is not None:
            self.demand = update_demand(self.demand, signals, self.policy)
            forecast = forecast_demand(self.demand, self.policy, now_s)
        self.state, self.scaling = decide(self.state, self.policy, signals, now_s, forecast)
        return self.scaling.desired


class PoolScaler:
    """Scaler of one pool, as an actor of the simulation."""

    def __init__(self, pool: PlannedPool, policy: ScalePolicy) -> None:
        self._name = pool.name
        self._warm = policy.warm
        self._scaler = OwnScaler(policy, Demand())
        self._due_s = PERIOD_S
        self.every_s = PERIOD_S if policy.min_replicas else _WAKE_S

    def __call__(self, simulation: Simulation) -> None:
        name, now_s = self._name, simulation.now_s
        signals = simulation.signals(name)
        if now_s < self._due_s - _WAKE_S / 2 and (signals.committed or not signals.waking):
            return
        self._due_s = now_s + PERIOD_S
        desired = self._scaler.decide_replicas(signals, now_s)
        counts = simulation.counts(name)
        missing = desired - counts.ready - counts.starting
        for _ in range(missing):
            if simulation.promote(name) is None:
                simulation.start_replica(name)
        if missing < 0:
            there = [*sorted(simulation.ready_ids(name)), *sorted(simulation.starting_ids(name))]
            for replica_id in there[missing:]:
                simulation.drain(replica_id)
        for _ in range(self._warm - simulation.counts(name).warm - simulation.counts(name).starting):
            simulation.start_replica(name, warm=True)


def scaler_of(pool: PlannedPool, startup_s: float) -> PoolScaler | None:
    """Return the pool's scaler, or None if its size is fixed."""
    if pool.autoscaling is None or (pool.least == pool.most and not pool.warm):
        return None
    slo_s = rules_of(pool.admission)[0].slo_s
    policy = ScalePolicy.from_entry(pool.autoscaling, slo_s=slo_s, startup_s=startup_s)
    return PoolScaler(pool, policy)
