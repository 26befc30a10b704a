"""Heartbeats stop while the bus answers: a replica that accepts connections stays in use; one that streams is not
probed."""

from functions.fleet.heartbeat import SILENCE_LIMIT_S
from functions.gateway.unheard import ASKED_AGAIN_S
from tests.gateway import sse
from tests.gateway.engine_rig import Play
from tests.gateway.hello import HELLO, Playing, finishes
from tests.gateway.rig import BOT_V1, POOL, heartbeat


def replicas(play: Play) -> list[str]:
    return [each.id for each in play.gateway.services.fleet.pool(POOL).replicas]


def gauge(play: Play, name: str) -> float | None:
    play.rig.gauges.scrape()
    return play.gateway.services.metrics.registry.get_sample_value(name)


def falls_mute(play: Play, seconds: float = SILENCE_LIMIT_S + 0.1) -> None:
    play.rig.clock.forward(seconds)
    play.gateway.sweep()


async def test_bus_without_heartbeats_does_not_empty_the_fleet(play: Playing) -> None:
    p = play("r0", "r1", "r2")
    p.gateway.services.bus_link.set(True)
    falls_mute(p)
    for _ in range(3):
        await p.connects()
    falls_mute(p, 60.0)
    for _ in range(3):
        await p.connects()
    assert replicas(p) == ["r0", "r1", "r2"]
    assert (gauge(p, "shoal_bus_up"), gauge(p, "shoal_unheard_replicas")) == (0, 3)
    p.ask()
    finishes(next(each for each in p.engines if each.requests))
    assert p.client.status == 200
    for sequence in (2, 3):
        for name in ("r0", "r1", "r2"):
            p.gateway.receive_heartbeat(heartbeat(name, sequence=sequence))
        p.gateway.sweep()
    assert (gauge(p, "shoal_bus_up"), gauge(p, "shoal_unheard_replicas")) == (1, 0)


async def test_unheard_replica_that_refuses_connections_is_removed(play: Playing) -> None:
    p = play("r0", "r1")
    falls_mute(p)
    assert {await p.refuses_connection(), (await p.connects()).replica_id} == {"r0", "r1"}
    assert replicas(p) == [p.engine.replica_id]


async def test_replica_heard_during_its_probe_stays(play: Playing) -> None:
    p = play("r0")
    falls_mute(p)
    p.gateway.receive_heartbeat(heartbeat("r0", sequence=2))
    p.gateway.sweep()
    await p.refuses_connection()
    assert replicas(p) == ["r0"]


async def test_probed_replica_is_probed_again_only_after_a_pause(play: Playing) -> None:
    p = play("r0")
    falls_mute(p)
    await p.connects()
    falls_mute(p, ASKED_AGAIN_S - 0.1)
    await p.settle()
    assert not p.dials
    falls_mute(p, 0.2)
    await p.refuses_connection()
    assert replicas(p) == []


async def test_streaming_replica_stays_without_heartbeats(play: Playing) -> None:
    p = play("r0")
    p.ask(stream=True)
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    for name in ("r1", "r2"):
        p.gateway.receive_heartbeat(heartbeat(name))
    for second in range(2, 40):
        p.rig.clock.forward(1.0)
        engine.streams(sse.token(BOT_V1, "b"))
        for name in ("r1", "r2"):
            p.gateway.receive_heartbeat(heartbeat(name, sequence=second))
        p.gateway.sweep()
    assert "r0" in replicas(p) and not p.client.ended and not p.dials
