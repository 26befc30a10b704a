"""The bus over a real Valkey: present and late listeners, expiry, and losing the server."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from functions.fleet import heartbeat as heartbeats
from functions.fleet.bus import BusUnavailable
from functions.fleet.valkey_bus import KEY_PREFIX, PINS_KEY_PREFIX, ValkeyBus
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


async def test_whoever_listens_hears_each_beat(bus: ValkeyBus, valkey_port: int) -> None:
    async with connect(valkey_port) as listener:
        messages = listener.listen()
        heard = await first(messages, lambda: bus.publish(beat(sequence=1)))
        assert heartbeats.decode(heard) == beat(sequence=1)
        await bus.publish(beat(sequence=2))
        while (heard_next := heartbeats.decode(await _next(messages))) == beat(sequence=1):
            pass  # it was said until it was heard
        assert heard_next == beat(sequence=2)


async def test_whoever_comes_later_finds_the_last_beat_of_each(bus: ValkeyBus) -> None:
    await bus.publish(beat(sequence=1))
    await bus.publish(beat(sequence=2))
    await bus.publish(beat(replica_id="r1"))
    found = sorted((heartbeats.decode(message) for message in await bus.latest()), key=lambda it: it.replica_id)
    assert found == [beat(sequence=2), beat(replica_id="r1")]


async def test_a_silent_replicas_beat_expires(bus: ValkeyBus) -> None:
    await bus.publish(beat())
    ttl_s = await bus._client.ttl(KEY_PREFIX + "r0")
    assert 0 < ttl_s <= heartbeats.SILENCE_LIMIT_S


async def test_an_empty_bus_has_no_beats(bus: ValkeyBus) -> None:
    assert await bus.latest() == []


async def test_a_server_that_is_away_is_unavailable() -> None:
    async with connect(free_port()) as bus:
        with pytest.raises(BusUnavailable):
            await bus.publish(beat())
        with pytest.raises(BusUnavailable):
            await bus.latest()
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
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(_end_of(messages))
                await asyncio.sleep(2.5)  # longer than the client's own time-outs: real time is the subject here
                assert not waiting.done()
                process.kill()
            assert isinstance(waiting.result(), BusUnavailable)
    finally:
        process.kill()
        process.wait()


async def _end_of(messages: AsyncIterator[bytes]) -> BusUnavailable | None:
    try:
        async with asyncio.timeout(WAIT_S):
            async for _ in messages:
                raise AssertionError("nobody has spoken")
    except BusUnavailable as error:
        return error
    return None


async def test_what_gateways_saw_reaches_whoever_listens(bus: ValkeyBus, valkey_port: int) -> None:
    async with connect(valkey_port) as listener:
        assert await first(listener.stats(), lambda: bus.publish_stats(b"seen")) == b"seen"


async def test_pins_reach_whoever_listens_and_whoever_comes_later(bus: ValkeyBus, valkey_port: int) -> None:
    for number in range(3):
        await bus.publish_pins(b"early %d" % number, ttl_s=300.0)
    async with connect(valkey_port) as listener:
        messages = listener.pins()
        kept = [await _next(messages) for _ in range(3)]
        assert sorted(kept) == [b"early 0", b"early 1", b"early 2"]
        await bus.publish_pins(b"now", ttl_s=300.0)
        assert await _next(messages) == b"now"


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


async def _next(messages: AsyncIterator[bytes]) -> bytes:
    return await asyncio.wait_for(anext(messages), WAIT_S)
