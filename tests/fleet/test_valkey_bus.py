"""The bus over a real Valkey: early and late listeners, expiry, and loss of the server."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from functions.fleet import heartbeat as heartbeats
from functions.fleet import valkey_bus
from functions.fleet.bus import BusUnavailable
from functions.fleet.heartbeat import Heartbeat, Pulse
from functions.fleet.heartbeat_gathering import ALONE_CHANNEL, KEY_PREFIX
from functions.fleet.valkey_bus import PINS_KEY_PREFIX, ValkeyBus
from tests.fleet.builders import beat
from tests.fleet.conftest import PASSWORD, start_valkey
from tests.fleet.listening import WAIT_S, first
from tests.ports import free_port

pytestmark = pytest.mark.servers


def connect(port: int) -> ValkeyBus:
    return ValkeyBus(f"valkey://127.0.0.1:{port}/0", password=PASSWORD)


@pytest.fixture
async def bus(valkey_port: int) -> AsyncIterator[ValkeyBus]:
    async with connect(valkey_port) as made:
        await made._client.flushall()
        yield made


async def test_listener_receives_each_heartbeat(bus: ValkeyBus, valkey_port: int) -> None:
    async with connect(valkey_port) as listener:
        messages = listener.listen()
        assert await anext(messages) == []
        await bus.publish(beat(sequence=1, sent_unix_s=100.0))
        assert await _lines(messages) == [beat(sequence=1, sent_unix_s=100.0)]
        await bus.publish(beat(sequence=2, sent_unix_s=101.0, running=7))
        (pulse,) = await _lines(messages)
        assert isinstance(pulse, Pulse) and (pulse.sequence, pulse.running) == (2, 7)
        assert heartbeats.with_pulse(beat(sequence=1, sent_unix_s=100.0), pulse) == beat(
            sequence=2, sent_unix_s=101.0, running=7
        )
        await bus.publish(beat(sequence=3, sent_unix_s=102.0, phase="draining"))
        assert await _lines(messages) == [beat(sequence=3, sent_unix_s=102.0, phase="draining")]


async def test_late_listener_receives_the_last_whole_heartbeats(bus: ValkeyBus) -> None:
    await bus.publish(beat(sequence=1))
    await bus.publish(beat(sequence=2, adapters=("a", "b")))
    await bus.publish(beat(sequence=3, adapters=("a", "b"), running=3))
    await bus.publish(beat(replica_id="r1"))
    kept = await anext(bus.listen())
    found = sorted((heartbeats.decode(message) for message in kept), key=lambda it: it.replica_id)
    assert found == [beat(sequence=2, adapters=("a", "b")), beat(replica_id="r1")]


async def test_a_silent_replicas_beat_expires_and_pulses_keep_it(bus: ValkeyBus) -> None:
    await bus.publish(beat(sequence=1))
    assert 0 < await bus._client.ttl(KEY_PREFIX + "r0") <= heartbeats.SILENCE_LIMIT_S
    await bus._client.expire(KEY_PREFIX + "r0", 1)
    await bus.publish(beat(sequence=2))
    assert 1 < await bus._client.ttl(KEY_PREFIX + "r0") <= heartbeats.SILENCE_LIMIT_S


async def test_a_server_without_the_whole_beat_asks_for_it(bus: ValkeyBus) -> None:
    await bus.publish(beat(sequence=1))
    await bus._client.flushall()  # like a newly promoted server, it has none of the heartbeats
    await bus.publish(beat(sequence=2))
    assert await anext(bus.listen()) == []
    await bus.publish(beat(sequence=3))
    assert [heartbeats.decode(message).sequence for message in await anext(bus.listen())] == [3]


async def test_many_beats_are_published_together_and_none_is_lost(bus: ValkeyBus, valkey_port: int) -> None:
    async with connect(valkey_port) as listener:
        messages = listener.listen()
        await anext(messages)
        for sequence in range(4):
            for number in range(250):
                await bus.publish(beat(replica_id=f"r{number}", sequence=sequence, sent_unix_s=100.0 + sequence))
        await bus.publish(beat(replica_id="r0", sequence=5, phase="draining"))  # also sends the held heartbeats
        heard: list[tuple[str, int]] = []
        came = 0
        async with asyncio.timeout(WAIT_S):
            while ("r0", 5) not in heard:
                heard += [(said.replica_id, said.sequence) for said in await _lines(messages)]
                came += 1
        assert sorted(heard[:-1]) == sorted((f"r{number}", sequence) for sequence in range(4) for number in range(250))
        assert came < 1000, "each came alone"


async def test_listeners_of_the_version_before_hear_whole_beats(bus: ValkeyBus) -> None:
    async with bus._client.pubsub(ignore_subscribe_messages=True) as old:
        await old.subscribe(ALONE_CHANNEL)
        await bus.publish(beat(sequence=1))
        await bus.publish(beat(sequence=2))
        async with asyncio.timeout(WAIT_S):
            heard: list[Heartbeat] = []
            while len(heard) < 2:
                message = await old.get_message(timeout=1.0)
                heard += [heartbeats.decode(message["data"])] if message is not None else []
    assert heard == [beat(sequence=1), beat(sequence=2)]


async def test_beats_of_agents_of_the_version_before_are_heard(bus: ValkeyBus, valkey_port: int) -> None:
    async with connect(valkey_port) as listener:
        messages = listener.listen()
        await anext(messages)
        await bus._client.publish(ALONE_CHANNEL, heartbeats.encode(beat(sequence=1)))
        assert await _lines(messages) == [beat(sequence=1)]
        assert await bus._client.pubsub_numsub(ALONE_CHANNEL) == [(ALONE_CHANNEL.encode(), 0)], "and none is sent twice"


async def test_an_empty_bus_has_no_beats(bus: ValkeyBus) -> None:
    assert await anext(bus.listen()) == []


async def _lines(messages: AsyncIterator[list[bytes]]) -> list[Heartbeat | Pulse]:
    async with asyncio.timeout(WAIT_S):
        (message,) = await anext(messages)
    return [heartbeats.decode_line(line) for line in heartbeats.lines(message)]


async def test_a_server_that_is_away_is_unavailable() -> None:
    async with connect(free_port()) as bus:
        with pytest.raises(BusUnavailable):
            await bus.publish(beat())
        with pytest.raises(BusUnavailable):
            await anext(bus.listen())


async def test_a_wrong_password_is_unavailable_and_not_shown(valkey_port: int) -> None:
    async with ValkeyBus(f"valkey://127.0.0.1:{valkey_port}/0", password="wrong-secret") as bus:
        with pytest.raises(BusUnavailable) as caught:
            await bus.publish(beat())
        assert "wrong-secret" not in str(caught.value)


async def test_a_quiet_bus_is_no_lost_bus_and_a_killed_server_is(tmp_path: Path) -> None:
    port = free_port()
    process = start_valkey(port, tmp_path)
    try:
        async with connect(port) as bus:
            messages = bus.listen()
            assert await anext(messages) == []
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(_end_of(messages))
                await asyncio.sleep(2.5)  # longer than the client's timeouts, in real time
                assert not waiting.done()
                process.kill()
            assert isinstance(waiting.result(), BusUnavailable)
    finally:
        process.kill()
        process.wait()


async def test_long_silent_listener_reads_stored_heartbeats(
    bus: ValkeyBus, valkey_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead subscription or a refused publication: the server answers, but no messages arrive."""
    monkeypatch.setattr(valkey_bus, "SILENT_AFTER_S", 1.0)
    messages = bus.listen()
    assert await anext(messages) == []
    await bus.publish(beat())  # published and stored
    assert await anext(messages)
    kept = [heartbeats.encode(beat())]
    for _ in range(2):
        async with asyncio.timeout(WAIT_S):
            assert await anext(messages) == kept
    await bus.publish(beat(sequence=2, phase="draining"))
    async with asyncio.timeout(WAIT_S):
        assert b"draining" in (await anext(messages))[0], "it hears as before"
    await messages.aclose()


async def test_a_server_that_hangs_is_a_lost_bus_before_silence_takes_replicas_out(tmp_path: Path) -> None:
    port = free_port()
    process = start_valkey(port, tmp_path)
    try:
        async with connect(port) as bus, connect(port) as late:
            messages = bus.listen()
            assert await anext(messages) == []
            process.send_signal(signal.SIGSTOP)
            started_s = time.monotonic()
            assert isinstance(await _end_of(messages), BusUnavailable)
            assert time.monotonic() - started_s < heartbeats.SILENCE_LIMIT_S
            with pytest.raises(BusUnavailable):
                await anext(late.listen())  # the server accepts the connection but never answers
    finally:
        process.kill()
        process.wait()


async def _end_of(messages: AsyncIterator[list[bytes]]) -> BusUnavailable | None:
    try:
        async with asyncio.timeout(WAIT_S):
            async for _ in messages:
                raise AssertionError("nobody has spoken")
    except BusUnavailable as error:
        return error
    return None


async def test_evidence_reaches_listeners(bus: ValkeyBus, valkey_port: int) -> None:
    async with connect(valkey_port) as listener:
        assert await first(listener.stats(), lambda: bus.publish_stats(b"seen")) == b"seen"


async def test_pins_reach_present_and_late_listeners(bus: ValkeyBus, valkey_port: int) -> None:
    for number in range(3):
        await bus.publish_pins(b"early %d" % number, ttl_s=300.0)
    async with connect(valkey_port) as listener:
        messages = listener.pins()
        assert sorted(await _next(messages)) == [b"early 0", b"early 1", b"early 2"]
        await bus.publish_pins(b"now", ttl_s=300.0)
        assert await _next(messages) == [b"now"]


async def test_kept_pins_expire(bus: ValkeyBus) -> None:
    await bus.publish_pins(b"long", ttl_s=299.5)
    (long,) = await bus._client.keys(PINS_KEY_PREFIX + "*")
    assert 200 < await bus._client.ttl(long) <= 300
    await bus.publish_pins(b"short", ttl_s=0.2)
    async with asyncio.timeout(WAIT_S):
        while await bus._client.keys(PINS_KEY_PREFIX + "*") != [long]:
            await asyncio.sleep(0.05)


async def test_rollout_news_over_a_server_that_is_away() -> None:
    async with connect(free_port()) as bus:
        for attempt in (bus.publish_stats(b"x"), bus.publish_pins(b"x", 1.0), _next(bus.stats()), _next(bus.pins())):
            with pytest.raises(BusUnavailable):
                await attempt


async def _next(messages: AsyncIterator[Any]) -> Any:
    return await asyncio.wait_for(anext(messages), WAIT_S)
