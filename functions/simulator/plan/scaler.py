"""Scales a simulated pool as its AutoscalingPolicy says: the controller's own decision, asked in virtual time.

Every PERIOD_S the pool's signals are looked at, the decision says how many replicas there are to be, and the difference
is made: warm replicas first, then started ones; too many are drained. What was promoted is replenished.

Neighbours: `simulator.scaling.scaler` asks `decisions.autoscaling.decide`; `functions.controller.autoscaling` does so
for real.
"""

from functions.decisions.admission.bands import rules_of
from functions.decisions.autoscaling.forecast import Demand
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.simulator.fleet.simulation import Simulation
from functions.simulator.fleet.start_times import StartTimes
from functions.simulator.plan.world import PlannedPool
from functions.simulator.scaling.scaler import OwnScaler

PERIOD_S = 15.0


class PoolScaler:
    """Of one pool, as an actor of the simulation."""

    def __init__(self, pool: PlannedPool, policy: ScalePolicy) -> None:
        self._name = pool.name
        self._warm = policy.warm
        self._scaler = OwnScaler(policy, Demand())

    def __call__(self, simulation: Simulation) -> None:
        name = self._name
        desired = self._scaler.look(simulation.signals(name), simulation.now_s)
        counts = simulation.counts(name)
        missing = desired - counts.ready - counts.starting
        for _ in range(missing):
            if simulation.promote(name) is None:
                simulation.start_replica(name)
        if missing < 0:
            for replica_id in sorted(simulation.ready_ids(name))[missing:]:
                simulation.drain(replica_id)
        for _ in range(self._warm - simulation.counts(name).warm - simulation.counts(name).starting):
            simulation.start_replica(name, warm=True)


def scaler_of(pool: PlannedPool, start: StartTimes) -> PoolScaler | None:
    """None for a pool whose size nothing changes."""
    if pool.autoscaling is None or (pool.least == pool.most and not pool.warm):
        return None
    slo_s = rules_of(pool.admission)[0].slo_s
    policy = ScalePolicy.of(pool.autoscaling, slo_s=slo_s, startup_s=start.of("cold"))
    return PoolScaler(pool, policy)
