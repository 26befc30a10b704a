"""Faults and their requests: retried if nothing was sent, ended with `upstream_lost` otherwise, never served twice."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from functions.api.ids import ReplicaId
from functions.simulator.fleet.outcome import Outcome
from functions.simulator.fleet.replica import Life
from functions.simulator.fleet.setting import POOL, Zone
from functions.simulator.fleet.simulation import Simulation
from studies.routers.simulated import ROUTERS
from tests.simulator.rigs import lost, pool, rig, served, shed, stream

FIRST, SECOND = ReplicaId("r0000"), ReplicaId("r0001")


def settled(simulation: Simulation) -> Outcome:
    """Return the outcome after checking that every request has one end or is under way."""
    outcome = simulation.run()
    assert sum(band.waiting for band in outcome.bands) == sum(
        not client.first_s for gateway in simulation.gateways for client in gateway.clients.values()
    )
    assert simulation.under_way == sum(len(gateway.clients) for gateway in simulation.gateways)
    assert all(
        band.served == band.ttft.count - band.lost["upstream_lost"] for band in outcome.bands if not lost(outcome)
    )
    for gateway in simulation.gateways:
        assert simulation.under_way or not (gateway.services.router.load.in_flight or gateway.services.open_requests)
    return outcome


def test_crash_ends_started_streams_and_retries_other_requests() -> None:
    simulation = rig(
        stream(20.0, 30.0, prompt_tokens=3000), (10.0, lambda it: it.crash(FIRST)), gateways=2, admission=None
    )
    outcome = settled(simulation)
    assert lost(outcome).keys() == {"upstream_lost"}
    assert 5 < lost(outcome)["upstream_lost"] < 60
    assert outcome.retries > 0
    assert served(outcome) + lost(outcome)["upstream_lost"] == 600


def test_crashed_replica_soon_receives_no_requests() -> None:
    """The first refusal ejects the replica; at most one probe goes there until silence removes it."""
    without = settled(rig(stream(20.0, 20.0)))
    with_crash = settled(rig(stream(20.0, 30.0), (10.0, lambda it: it.crash(FIRST))))
    assert without.retries == 0
    assert 1 <= with_crash.retries <= 20  # 400 requests were sent afterwards
    assert served(with_crash) + sum(lost(with_crash).values()) == 600


def test_restarted_replica_serves_with_an_empty_cache() -> None:
    happens = (10.0, lambda it: it.crash(FIRST)), (12.0, lambda it: it.restart(FIRST, "disk"))
    simulation = rig(stream(8.0, 90.0), *happens, replicas=2)
    settled(simulation)
    replica = simulation.lifecycle.replicas[FIRST]
    assert replica.life is Life.READY
    assert replica.incarnation == 1
    assert replica.engine.finished > 100


def test_hung_engine_is_avoided_after_its_agents_report() -> None:
    simulation = rig(stream(10.0, 60.0), (10.0, lambda it: it.hang(FIRST, 20.0)))
    outcome = settled(simulation)
    assert served(outcome) == 600
    assert not shed(outcome)
    slowest_ms = outcome.bands[0].ttft.quantile(1.0)
    assert slowest_ms is not None
    assert 1000 < slowest_ms < 8000  # an agent needs four seconds to be sure; no request waits for the twenty
    assert simulation.lifecycle.replicas[FIRST].engine.finished > 60


def test_hang_with_a_silent_agent_is_detected_by_waiting_requests() -> None:
    """The agent hangs too. Its silence would remove the replica after 15 s, but the gateway reacts after a second."""
    outcome = settled(rig(stream(10.0, 60.0), (10.0, lambda it: it.hang(FIRST, 40.0, mute=True))))
    slowest_ms = outcome.bands[0].ttft.quantile(1.0)
    assert slowest_ms is not None
    assert 1000 < slowest_ms < 3000


def test_agent_restarts_an_engine_that_hangs_too_long() -> None:
    simulation = rig(stream(4.0, 120.0), (10.0, lambda it: it.hang(FIRST, 1000.0)))
    settled(simulation)
    assert simulation.lifecycle.replicas[FIRST].incarnation == 1
    assert simulation.lifecycle.replicas[FIRST].life is Life.READY


def test_streams_on_an_unreachable_replica_end_after_their_idle_time() -> None:
    ended_s: list[float] = []

    def watch(simulation: Simulation) -> None:
        if lost(simulation.outcome) and not ended_s:
            ended_s.append(simulation.now_s)

    simulation = rig(
        stream(10.0, 60.0, output_tokens=300),
        (10.0, lambda it: it.crash(FIRST, unreachable=True)),
        actors=((0.2, watch),),
    )
    outcome = settled(simulation)
    assert lost(outcome).keys() == {"upstream_lost"}
    assert ended_s[0] == pytest.approx(40.0, abs=0.5)


def test_slow_replica_is_ejected_as_an_outlier() -> None:
    """There are six replicas, so that the slow one can be compared with others."""

    def part_of_first(**happens: Any) -> float:
        slow = [(0.1, lambda it: it.slow(FIRST, 8.0, 1000.0))] if happens["is_slow"] else []
        simulation = rig(stream(40.0, 60.0), *slow, replicas=6, router=ROUTERS["round-robin"], admission=None)
        settled(simulation)
        finished = [replica.engine.finished for replica in simulation.lifecycle.replicas.values()]
        return finished[0] / sum(finished)

    assert part_of_first(is_slow=False) == pytest.approx(1 / 6, abs=0.02)
    assert part_of_first(is_slow=True) < 0.11


def test_restarted_gateway_loses_its_requests_and_serves_again() -> None:
    simulation = rig(stream(20.0, 40.0), (10.0, lambda it: it.restart_gateway(0)), gateways=2)
    outcome = settled(simulation)
    assert lost(outcome).keys() == {"gateway_lost"}
    assert 5 < lost(outcome)["gateway_lost"] < 60
    assert all(gateway.is_up for gateway in simulation.gateways)
    assert simulation.gateways[0].count > 100
    for replica in simulation.lifecycle.replicas.values():
        assert not replica.engine.running  # its engines were notified


def test_overlapping_gateway_restarts_count_as_one() -> None:
    """The second restart must not remove the first one's successor with its requests."""
    happens = (10.0, lambda it: it.restart_gateway(0)), (11.0, lambda it: it.restart_gateway(0, after_s=6.0))
    simulation = rig(stream(20.0, 30.0), *happens, gateways=2)
    outcome = settled(simulation)
    assert lost(outcome).keys() == {"gateway_lost"}
    assert served(outcome) + lost(outcome)["gateway_lost"] == 600


def test_without_any_gateway_requests_are_lost() -> None:
    outcome = settled(rig(stream(10.0, 20.0), (5.0, lambda it: it.restart_gateway(0, after_s=5.0))))
    assert lost(outcome)["no_gateway"] == pytest.approx(50, abs=2)


def test_partitioned_gateway_keeps_its_last_fleet_view() -> None:
    """The gateway learns of no new replica and forgets none."""
    happens = (
        (5.0, lambda it: it.partition(0, 40.0)),
        (6.0, lambda it: it.start_replica(POOL, "disk")),
    )
    simulation = rig(stream(8.0, 40.0), *happens, pools=(pool(replicas=2),), until_s=44.0)
    outcome = settled(simulation)
    assert not shed(outcome)
    assert list(simulation.lifecycle.replicas.values())[2].engine.finished == 0
    assert len(simulation.gateways[0].fleet.index(POOL).ready) == 2


def test_gateway_updates_its_view_after_a_partition() -> None:
    happens = ((5.0, lambda it: it.partition(0, 30.0)), (6.0, lambda it: it.start_replica(POOL, "disk")))
    simulation = rig(stream(8.0, 60.0), *happens, pools=(pool(replicas=2),))
    settled(simulation)
    assert list(simulation.lifecycle.replicas.values())[2].engine.finished > 20


ZONES = (Zone("a", "north"), Zone("b", "north"), Zone("c", "south"))


def test_replicas_and_gateways_are_spread_over_zones() -> None:
    simulation = rig(stream(1.0, 2.0), zones=ZONES, replicas=6, gateways=3)
    simulation.run()
    assert [replica.zone.name for replica in simulation.lifecycle.replicas.values()] == ["a", "b", "c"] * 2
    assert [gateway.zone.name for gateway in simulation.gateways] == ["a", "b", "c"]
    known = [len(gateway.fleet.index(POOL).ready) for gateway in simulation.gateways]
    assert known == [4, 4, 2]  # each region has its own bus


def test_lost_zone_loses_its_replicas_and_gateways() -> None:
    simulation = rig(stream(10.0, 60.0), (10.0, lambda it: it.lose_zone("a")), zones=ZONES[:2], replicas=6, gateways=2)
    outcome = settled(simulation)
    assert simulation.counts(POOL).lost == 3
    assert simulation.counts(POOL).ready == 3
    assert [gateway.is_up for gateway in simulation.gateways] == [False, True]
    assert served(outcome) > 540


def test_clients_of_a_lost_region_are_served_elsewhere_with_a_round_trip() -> None:
    def run(*happens: tuple[float, Callable[[Simulation], Any]]) -> Outcome:
        workload = stream(4.0, 60.0, region=lambda number: ("north", "south")[number % 2])
        return settled(rig(workload, *happens, zones=ZONES[1:], replicas=8, gateways=2, cross_region_s=0.5))

    near, far = run(), run((20.0, lambda it: it.lose_region("south")))
    fastest = [outcome.bands[0].ttft.quantile(0.9) for outcome in (near, far)]
    assert fastest[0] is not None
    assert fastest[1] is not None
    assert fastest[1] - fastest[0] == pytest.approx(500.0, abs=60.0)
    assert served(far) > 230


FAULTS: dict[str, Callable[[Simulation, int, float], Any]] = {
    "crash": lambda it, which, _: it.crash(_nth(it, which)),
    "cut": lambda it, which, _: it.crash(_nth(it, which), unreachable=True),
    "restart": lambda it, which, _: it.restart(_nth(it, which)),
    "hang": lambda it, which, for_s: it.hang(_nth(it, which), for_s),
    "mute": lambda it, which, for_s: it.hang(_nth(it, which), for_s, mute=True),
    "slow": lambda it, which, for_s: it.slow(_nth(it, which), 5.0, for_s),
    "drain": lambda it, which, _: it.drain(_nth(it, which)),
    "start": lambda it, _, __: it.start_replica(POOL, "disk"),
    "promote": lambda it, _, __: it.promote(POOL),
    "partition": lambda it, which, for_s: it.partition(which % 2, for_s),
    "gateway": lambda it, which, for_s: it.restart_gateway(which % 2, for_s / 10),
}


def _nth(simulation: Simulation, which: int) -> ReplicaId:
    ids = simulation.replica_ids()
    return ids[which % len(ids)] if ids else FIRST


happening = st.tuples(st.floats(0.5, 25.0), st.sampled_from(sorted(FAULTS)), st.integers(0, 7), st.floats(0.5, 60.0))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(happening, max_size=8), st.booleans(), st.sampled_from([6.0, 25.0]))
def test_each_request_has_one_end_under_any_faults(
    happens: list[tuple[float, str, int, float]], has_room: bool, per_s: float
) -> None:
    simulation = rig(
        stream(per_s, 12.0, output_tokens=40),
        *((at_s, _happening(name, which, for_s)) for at_s, name, which, for_s in happens),
        pools=(pool(replicas=2, warm=1),),
        gateways=2,
        **({} if has_room else {"admission": None}),
    )
    outcome = settled(simulation)
    asked = sum(band.asked for band in outcome.bands)
    waiting = sum(band.waiting for band in outcome.bands)
    assert asked == int(per_s * 12.0)
    assert served(outcome) + sum(shed(outcome).values()) + sum(lost(outcome).values()) + waiting == asked


def _happening(name: str, which: int, for_s: float) -> Callable[[Simulation], Any]:
    return lambda simulation: FAULTS[name](simulation, which, for_s)
