"""Detection: a slow replica in a pool of two to four is replaced; a lost zone is avoided as a whole, and no other."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from functions.api.ids import ReplicaId, TenantId
from functions.controller.health.watch import FleetHealth
from functions.decisions.health.slow_replica import SlowPolicy
from functions.fleet.pool_board import PoolReport, replica_report
from functions.fleet.view import FleetView
from functions.simulator.fleet.replica import Life
from functions.simulator.fleet.setting import Zone
from functions.simulator.fleet.simulation import Simulation
from functions.simulator.workload.request import WorkloadRequest
from tests.simulator.rigs import lost, pool, rig, served, shed, stream

FIRST = ReplicaId("r0000")


@dataclass
class Controller:
    """Slow-replica handling of the controller, on the simulation's clock; a restart is a drain and a new start."""

    policy: SlowPolicy = field(default_factory=lambda: SlowPolicy(60.0, 60.0))
    restarted: list[tuple[float, ReplicaId]] = field(default_factory=list)
    health: FleetHealth | None = None

    def restart_slow(self, simulation: Simulation) -> None:
        if self.health is None:
            now = lambda: simulation.now_s  # noqa: E731 - the one clock
            self.health = FleetHealth(self.policy, now, lambda: simulation.now_s + 1000.0)
        beats = [
            replica.last_heartbeat
            for replica in simulation.lifecycle.replicas.values()
            if replica.last_heartbeat is not None and replica.life in (Life.STARTING, Life.READY, Life.DRAINING)
        ]
        for slow in self.health.step(PoolReport(True, {}, tuple(replica_report(each, 0.1) for each in beats))).restart:
            self.health.mark_restarting(slow)
            self.restarted.append((simulation.now_s, slow.replica_id))
            simulation.drain(slow.replica_id)
            simulation.start_replica(slow.pool, "disk")


def slowed(replicas: int, factor: float, *, per_s: float = 4.0, minutes: float = 5.0) -> tuple[Simulation, Controller]:
    controller = Controller()
    slow = [(20.0, lambda it: it.slow(FIRST, factor, 10_000.0))] if factor > 1.0 else []
    simulation = rig(
        stream(per_s * replicas, minutes * 60.0), *slow, replicas=replicas, actors=((1.0, controller.restart_slow),)
    )
    simulation.run()
    return simulation, controller


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_slow_replica_is_replaced_without_lost_streams(replicas: int) -> None:
    simulation, controller = slowed(replicas, 8.0)
    (at_s, who), *more = controller.restarted
    assert (who, more) == (FIRST, [])
    assert 20.0 + 60.0 <= at_s <= 20.0 + 100.0
    assert not lost(simulation.outcome) and not shed(simulation.outcome)


def test_busy_replicas_are_not_slow() -> None:
    """The load is near the capacity of four, from tenants with different sizes: the paces differ, explained by load."""
    controller = Controller()
    sizes = [100, 400, 6000, 800, 200, 12_000, 300]
    asked = (
        WorkloadRequest((number + 1) / 10.0, TenantId(f"t{number % 4}"), sizes[number % 7], 20 + number % 500)
        for number in range(1800)
    )
    simulation = rig(asked, replicas=4, actors=((1.0, controller.restart_slow),))
    simulation.run()
    assert not controller.restarted


def zone_lost(monkeypatch: pytest.MonkeyPatch, *, detecting: bool) -> tuple[Simulation, float]:
    """Lose one zone of three at 20.3 s; also return for how long requests were still sent there."""
    if not detecting:
        monkeypatch.setattr(FleetView, "update_suspicions", lambda view, now_s: (frozenset(), frozenset()))
    last: list[tuple[float, int]] = [(0.0, 0)]

    def watch(simulation: Simulation) -> None:
        if simulation.outcome.retries > last[-1][1]:
            last.append((simulation.now_s, simulation.outcome.retries))

    def lose(simulation: Simulation) -> None:
        for replica in simulation.lifecycle.replicas.values():
            if replica.zone.name == "c":
                simulation.crash(replica.id, unreachable=True)

    zones = tuple(Zone(name) for name in "abc")
    made = pool(replicas=12)
    simulation = rig(stream(40.0, 60.0), (20.3, lose), pools=(made,), zones=zones, gateways=12, actors=((0.25, watch),))
    simulation.run()
    return simulation, last[-1][0] - 20.3


def test_lost_zone_is_avoided_before_each_gateway_detects_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before, before_s = zone_lost(monkeypatch, detecting=False)
    monkeypatch.undo()
    after, after_s = zone_lost(monkeypatch, detecting=True)
    assert after_s < 6.0 < before_s
    assert after.outcome.retries < 0.7 * before.outcome.retries
    assert served(after.outcome) + sum(lost(after.outcome).values()) == 2400
    assert sum(lost(after.outcome).values()) <= sum(lost(before.outcome).values())


@pytest.mark.parametrize("what", ["mute", "half"])
def test_bus_failure_raises_no_suspicion(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All agents, or every second one of each zone, fall silent for ten seconds while their engines serve."""
    seen: list[int] = []

    def watch(simulation: Simulation) -> None:
        seen.extend(len(gateway.fleet.suspicions.replicas) for gateway in simulation.gateways)

    def silence(simulation: Simulation, is_mute: bool) -> None:
        for number, replica in enumerate(simulation.lifecycle.replicas.values()):
            if what == "mute" or (number // 3) % 2:
                replica.is_mute = is_mute

    happens: list[tuple[float, Callable[[Simulation], None]]] = [
        (20.3, lambda it: silence(it, True)),
        (30.3, lambda it: silence(it, False)),
    ]
    zones = tuple(Zone(name) for name in "abc")
    simulation = rig(
        stream(20.0, 60.0), *happens, pools=(pool(replicas=12),), zones=zones, gateways=2, actors=((0.25, watch),)
    )
    outcome = simulation.run()
    assert max(seen) == 0
    assert served(outcome) == 1200 and not shed(outcome)
