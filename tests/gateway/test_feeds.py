"""Feeds: what is published and received about rollouts, over a bus that the test controls."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from functions.api.ids import ReplicaId
from functions.fleet import rollout_heartbeat, session_pins
from functions.fleet.bus import BusUnavailable
from functions.fleet.heartbeat import SILENCE_LIMIT_S
from functions.gateway import feeds
from functions.gateway.gateway import Gateway
from functions.gateway.services import Services
from tests.gateway.hello import Playing
from tests.gateway.rig import NOW_UNIX_S, POOL, ROLLOUT, Rig, heartbeat, in_rollout
from tests.gateway.test_exchange_rollouts import engine_of, send_in_group


class Bus:
    """A bus in memory that is unavailable while `away`."""

    def __init__(self) -> None:
        self.away = False
        self.stats_told: list[bytes] = []
        self.pins_told: list[tuple[bytes, float]] = []
        self.homes_told: list[bytes] = []
        self.coming: asyncio.Queue[bytes] = asyncio.Queue()

    async def publish_stats(self, message: bytes) -> None:
        self._reach()
        self.stats_told.append(message)

    async def publish_pins(self, message: bytes, ttl_s: float) -> None:
        self._reach()
        self.pins_told.append((message, ttl_s))

    async def publish_homes(self, message: bytes, ttl_s: float) -> None:
        self._reach()
        self.homes_told.append(message)

    async def pins(self) -> AsyncIterator[list[bytes]]:
        self._reach()
        while True:
            yield [await self.coming.get()]

    async def homes(self) -> AsyncIterator[list[bytes]]:
        async for messages in self.pins():
            yield messages

    async def listen(self) -> AsyncIterator[list[bytes]]:
        async for messages in self.pins():
            yield messages

    async def stats(self) -> AsyncIterator[bytes]:
        self._reach()
        yield b""

    def _reach(self) -> None:
        if self.away:
            raise BusUnavailable("away")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "_EVIDENCE_INTERVAL_S", 0.001)
    monkeypatch.setattr(feeds, "_PINS_INTERVAL_S", 0.001)


@asynccontextmanager
async def running(feed: Callable[[Any, Bus], object], told: Gateway | Services, bus: Bus) -> AsyncIterator[None]:
    task = asyncio.ensure_future(feed(told, bus))  # type: ignore[call-overload]
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


async def test_evidence_is_published_in_full_after_an_outage(play: Playing) -> None:
    p, bus = play("r0", **in_rollout()), Bus()
    async with running(feeds.publish_evidence, p.gateway.services, bus):
        send_in_group(p, "candidate", stream=False)
        (await engine_of(p)).answers(200, b'{"choices":[]}')
        await until(lambda: bus.stats_told)
    first = rollout_heartbeat.decode(bus.stats_told[0])
    assert [(said.rollout, said.candidate.requests) for said in first.rollouts] == [(ROLLOUT, 1)]
    bus.away = True
    with pytest.raises(BusUnavailable):
        await feeds.publish_evidence(p.gateway.services, bus)
    lost = p.gateway.services.metrics.registry.get_sample_value("shoal_bus_lost_total", {"what": "evidence"})
    assert lost == 1
    bus.away = False
    bus.stats_told.clear()
    async with running(feeds.publish_evidence, p.gateway.services, bus):
        await until(lambda: bus.stats_told)
    assert len(rollout_heartbeat.decode(bus.stats_told[0]).rollouts) == 1, "said again, though nothing changed"


async def test_pins_are_published_with_ttl_and_kept_during_an_outage() -> None:
    gateway, bus = Rig(policies=in_rollout()).gateway, Bus()
    pins = gateway.services.rollouts.splits.pins
    pins.pin(ROLLOUT, b"12345678", "control", 300.0)
    bus.away = True
    with pytest.raises(BusUnavailable):
        await feeds.publish_pins(gateway.services, bus)
    assert pins.unpublished == 1
    assert gateway.services.metrics.registry.get_sample_value("shoal_bus_lost_total", {"what": "pins"}) == 1
    bus.away = False
    async with running(feeds.publish_pins, gateway.services, bus):
        await until(lambda: bus.pins_told)
    message, ttl_s = bus.pins_told[0]
    batch = session_pins.decode(message)
    assert (batch.sent_unix_s, ttl_s, pins.unpublished) == (NOW_UNIX_S, 300.0, 0)
    assert session_pins.hashes_in(batch.pins[0]) == [b"12345678"]


async def test_final_publish_sends_all_unpublished_pins() -> None:
    gateway, bus = Rig(policies=in_rollout()).gateway, Bus()
    gateway.services.rollouts.splits.pins.pin(ROLLOUT, b"12345678", "control", 300.0)
    await feeds.publish_pins_once(gateway.services, bus)
    assert len(bus.pins_told) == 1 and gateway.services.rollouts.splits.pins.unpublished == 0


async def test_pins_of_others_are_received_and_malformed_ones_dropped(caplog: pytest.LogCaptureFixture) -> None:
    mine, theirs, bus = Rig().gateway.services, Rig().gateway.services, Bus()
    mine.rollouts.splits.pins.pin(ROLLOUT, b"12345678", "control", 300.0)
    async with running(feeds.publish_pins, mine, bus), running(feeds.follow_pins, theirs, bus):
        await until(lambda: bus.pins_told)
        for message in (b"nonsense", bus.pins_told[0][0]):
            bus.coming.put_nowait(message)
        await until(lambda: len(theirs.rollouts.splits.pins))
    assert theirs.rollouts.splits.pins.group_of(ROLLOUT, b"12345678") == "control"
    assert "dropped a batch of pins" in caplog.text


async def test_successor_of_the_same_name_learns_published_homes() -> None:
    """After a restart or a handover in place, it took its own messages for known, and its conversations went
    elsewhere."""
    former, later, bus = Rig().gateway.services, Rig().gateway.services, Bus()
    assert former.gateway_id == later.gateway_id
    conversation, replica = b"12345678", ReplicaId("r1")
    former.router.homes.record_sent(POOL, conversation, replica, ReplicaId("r0"), 300.0)
    async with running(feeds.publish_homes, former, bus), running(feeds.follow_homes, later, bus):
        await until(lambda: bus.homes_told)
        bus.coming.put_nowait(bus.homes_told[0])
        await until(lambda: len(later.router.homes))
    found = later.router.homes.home_of(POOL, conversation)
    assert found is not None and found.replica_id == replica


async def test_gateway_is_ready_after_reading_retained_messages() -> None:
    """A gateway that joins early knows neither homes nor the fleet, so first turns would go to any replica."""
    rig = Rig().with_replicas("r0")
    gateway, state, buses = rig.gateway, rig.gateway.services.state, [Bus(), Bus(), Bus()]
    assert gateway.not_ready_reason() is None
    state.unread, state.unread_until_s = {"heartbeats", "pins", "session homes"}, rig.clock() + 10.0
    async with (
        running(feeds.follow_bus, gateway, buses[0]),
        running(feeds.follow_pins, gateway.services, buses[1]),
        running(feeds.follow_homes, gateway.services, buses[2]),
    ):
        assert gateway.not_ready_reason() == (
            "messages retained by the bus are not all read yet: heartbeats, pins, session homes"
        )
        for bus in buses:
            bus.coming.put_nowait(b"")
        await until(lambda: gateway.not_ready_reason() is None)
    state.unread = {"pins"}
    state.bus_down = True
    assert gateway.not_ready_reason() is None, "it would wait for nothing"
    state.bus_down = False
    assert gateway.not_ready_reason() is not None
    rig.clock.forward(10.0)
    assert gateway.not_ready_reason() is None, "nor for ever"


class Beats:
    """The heartbeat side of the bus, on which nothing is ever sent."""

    def __init__(self, *, away: bool) -> None:
        self.away = away

    async def listen(self) -> AsyncIterator[list[bytes]]:
        if self.away:
            raise BusUnavailable("away")
        yield []
        await asyncio.Event().wait()


@pytest.mark.parametrize(("phase", "level"), [("ready", "WARNING"), ("draining", "INFO")])
async def test_drained_replica_that_disappears_is_no_warning(
    play: Playing, caplog: pytest.LogCaptureFixture, phase: str, level: str
) -> None:
    p = play("r0", "r1")
    caplog.set_level("INFO", "functions.gateway.gateway")
    p.gateway.receive_heartbeat(heartbeat("r0", sequence=9, phase=phase))
    for sequence in range(2, 18):
        p.rig.clock.forward(1.0)
        p.gateway.receive_heartbeat(heartbeat("r1", sequence=sequence))
    p.gateway.sweep()
    assert [record.levelname for record in caplog.records if "r0" in record.message] == [level]


async def test_no_replica_is_silent_while_the_bus_is_away(play: Playing) -> None:
    p = play("r0")
    link = p.gateway.services.bus_link
    link.set(True)
    await feeds.follow_bus(p.gateway, Beats(away=True))  # type: ignore[arg-type]
    p.rig.clock.forward(600.0)
    assert (link.is_up, link.state_s) == (False, 600.0)
    p.gateway.sweep()
    assert p.gateway.services.fleet.pool(POOL).replicas, "it may beat as ever: it is the gateway that hears nothing"
    async with running(feeds.follow_bus, p.gateway, Beats(away=False)):  # type: ignore[arg-type]
        await until(lambda: not p.gateway.services.state.bus_down)
    assert (link.is_up, link.state_s) == (True, 0.0)
    p.rig.gauges.scrape()
    assert p.gateway.services.metrics.registry.get_sample_value("shoal_bus_up") == 1
    p.rig.clock.forward(SILENCE_LIMIT_S)
    p.gateway.sweep()
    assert p.gateway.services.fleet.pool(POOL).replicas
    p.rig.clock.forward(0.1)
    p.gateway.sweep()
    assert await p.refuses_connection() == "r0"
    assert not p.gateway.services.fleet.pool(POOL).replicas, "now its silence is its own"


async def test_prefixes_survive_a_stall_of_the_gateway() -> None:
    """The first sweep after a stall ran before the updates were read, so that all prefixes had to be learnt again."""
    times_s, swept_s = iter([0.0, 0.01, 20.0, 20.01]), []
    now_s = [0.0]

    class Prefixes:
        def sweep(self) -> None:
            swept_s.append(now_s[0])

    def clock() -> float:
        now_s[0] = next(times_s)
        return now_s[0]

    with suppress(RuntimeError):  # no more times
        await feeds.sweep_prefixes(Prefixes(), clock, 0.01)  # type: ignore[arg-type]
    assert swept_s == [0.01, 20.01]
