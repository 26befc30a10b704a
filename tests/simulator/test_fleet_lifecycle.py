"""Replicas start, are promoted and end in their configured times, and gateways learn of it by heartbeats."""

import pytest

from functions.api.ids import PoolName, ReplicaId
from functions.simulator.fleet.replica import Life, Replica
from functions.simulator.fleet.setting import POOL, Zone
from functions.simulator.fleet.simulation import Simulation
from functions.simulator.fleet.start_times import StartTimes
from functions.simulator.fleet.token_gaps import TokenGaps
from tests.simulator.rigs import lost, pool, rig, served, shed, stream

QUICK = StartTimes(accelerator_s=30.0, s3_s=8.0, peer_s=4.0, disk_s=2.0, engine_s=5.0, promote_s=0.5)


def counted(at_s: float, simulation: Simulation) -> tuple[int, int, int, int]:
    """Return the replicas starting, warm, ready and draining at that time."""
    seen: list[tuple[int, int, int, int]] = []

    def record_counts() -> None:
        counts = simulation.counts(POOL)
        seen.append((counts.starting, counts.warm, counts.ready, counts.draining))

    simulation.events.at(at_s, record_counts)
    simulation.run()
    return seen[0]


def test_start_time_depends_on_its_source() -> None:
    times = StartTimes()
    assert times.of("disk") == pytest.approx(22.7)
    assert times.of("peer") == pytest.approx(24.3)
    assert times.of("s3") == pytest.approx(46.5)
    assert times.of("cold") == pytest.approx(346.5)


@pytest.mark.parametrize(("source", "takes_s"), [("disk", 7.0), ("peer", 9.0), ("s3", 13.0), ("cold", 43.0)])
def test_a_replica_is_ready_after_its_start_and_not_before(source: str, takes_s: float) -> None:
    def ordered() -> Simulation:
        start = (10.0, lambda simulation: simulation.start_replica(POOL, source))
        return rig(stream(2.0, 80.0), start, pools=(pool(start=QUICK),))

    assert counted(10.0 + takes_s - 0.1, ordered()) == (1, 0, 2, 0)
    assert counted(10.0 + takes_s + 0.1, ordered()) == (0, 0, 3, 0)


def test_new_replica_receives_its_share_of_traffic() -> None:
    simulation = rig(
        stream(8.0, 60.0), (5.0, lambda it: it.start_replica(POOL, "disk")), pools=(pool(replicas=1, start=QUICK),)
    )
    outcome = simulation.run()
    old, new = simulation.lifecycle.replicas.values()
    assert served(outcome) == 480
    assert new.engine.finished > 0.3 * old.engine.finished


def test_warm_replica_receives_nothing_until_promoted() -> None:
    promote = (20.0, lambda it: it.promote(POOL))
    simulation = rig(stream(8.0, 40.0), promote, pools=(pool(replicas=1, warm=1, start=QUICK),))
    finished: list[int] = []
    simulation.events.at(20.4, lambda: finished.append(list(simulation.lifecycle.replicas.values())[1].engine.finished))
    simulation.run()
    warm = list(simulation.lifecycle.replicas.values())[1]
    assert finished == [0]
    assert warm.life is Life.READY
    assert warm.engine.finished > 20
    assert simulation.promote(POOL) is None


def test_one_warm_replica_is_promoted_once() -> None:
    asked: list[object] = []
    twice = (5.0, lambda it: asked.extend([it.promote(POOL), it.promote(POOL)]))
    rig(stream(1.0, 10.0), twice, pools=(pool(warm=1, start=QUICK),)).run()
    assert asked[0] is not None
    assert asked[1] is None


def test_warm_replica_can_be_started_on_demand() -> None:
    order = (1.0, lambda it: it.start_replica(POOL, "disk", warm=True))
    simulation = rig(stream(2.0, 30.0), order, pools=(pool(start=QUICK),))
    assert counted(9.0, simulation) == (0, 1, 2, 0)


def test_draining_replica_finishes_its_requests_and_ends() -> None:
    drain = (10.0, lambda it: it.drain(it.ready_ids(POOL)[0]))
    simulation = rig(stream(4.0, 40.0, output_tokens=400), drain, pools=(pool(),))
    outcome = simulation.run()
    assert len(simulation.lifecycle.replicas) == 1
    assert served(outcome) == 160
    assert not lost(outcome)
    assert not shed(outcome)


def test_start_drained_early_never_becomes_ready() -> None:
    def order(simulation: Simulation) -> None:
        replica_id = simulation.start_replica(POOL, "cold")
        simulation.events.after(5.0, lambda: simulation.drain(replica_id))

    simulation = rig(stream(2.0, 80.0), (1.0, order), pools=(pool(start=QUICK),))
    assert counted(70.0, simulation) == (0, 0, 2, 0)
    assert simulation.accelerator_seconds(POOL) == pytest.approx(2 * simulation.now_s)


def test_accelerators_are_paid_from_start_to_end() -> None:
    def order(simulation: Simulation) -> None:
        replica_id = simulation.start_replica(POOL, "cold")
        simulation.events.at(899.0, lambda: simulation.drain(replica_id))

    simulation = rig(stream(0.02, 1000.0), (0.0, order), pools=(pool(replicas=1),))
    simulation.run()
    own_s = simulation.accelerator_seconds(POOL) - simulation.now_s
    assert own_s == pytest.approx(600.0, abs=1.5)


def test_replica_life_allows_only_defined_transitions() -> None:
    replica = Replica(ReplicaId("r1"), pool(), Zone(""), block_tokens=64, gaps=TokenGaps(), adapters=None)
    with pytest.raises(ValueError, match="r1 is ordered: it cannot become ready"):
        replica.move(Life.READY)
    assert replica.life is Life.ORDERED


def test_requests_are_served_by_the_pool_they_name() -> None:
    pools = (pool("small"), pool("large", replicas=1))
    workload = stream(4.0, 30.0, pool=lambda number: ("small", "large")[number % 2])
    simulation = rig(workload, pools=pools, gateways=2)
    outcome = simulation.run()
    finished = dict.fromkeys(("small", "large"), 0)
    for replica in simulation.lifecycle.replicas.values():
        finished[replica.pool.name] += replica.engine.finished
    assert finished == {"small": 60, "large": 60}
    assert served(outcome) == 120
    assert simulation.pools() == (PoolName("small"), PoolName("large"))
