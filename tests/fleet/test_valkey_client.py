"""Clients follow the primary of a replicated bus: three Valkeys, three sentinels, and the primary killed or hung."""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from pathlib import Path

import pytest

from functions.fleet import valkey_client
from functions.fleet.bus import BusUnavailable
from functions.fleet.conversation_store import ValkeyConversations
from functions.fleet.heartbeat import SILENCE_LIMIT_S, decode, decode_line, lines
from functions.fleet.quota_leases import NO_LIMIT, Group, LeaseRequest, RateRequest, ValkeyQuotaBroker
from functions.fleet.valkey_bus import ValkeyBus
from functions.fleet.valkey_client import BusUrlInvalid, Primary
from tests.fleet.builders import beat
from tests.fleet.replicated import PASSWORD, ReplicatedBus, client

_WAIT_S = 90.0
_LIMIT = 600  # a minute
_MICRO = 1_000_000


@pytest.mark.parametrize(
    ("url", "primary"),
    [
        ("valkey+sentinel://a:1,b:2/shoal/3", Primary((("a", 1), ("b", 2)), "shoal", 3)),
        ("valkey+sentinel://a.b.svc/shoal", Primary((("a.b.svc", 26379),), "shoal", 0)),
        ("valkey+sentinel://[::1]:7/shoal/0", Primary((("::1", 7),), "shoal", 0)),
    ],
)
def test_an_address_names_several_sentinels(url: str, primary: Primary) -> None:
    assert valkey_client.sentinels_of(url) == primary


@pytest.mark.parametrize("rest", ["", "a:1", "a:1/", "a:x/shoal", "a:1,/shoal", "a:1/shoal/x", ":pw@a:1/shoal"])
def test_invalid_bus_address_is_reported(rest: str) -> None:
    with pytest.raises(BusUrlInvalid):
        valkey_client.client(f"valkey+sentinel://{rest}")


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[ReplicatedBus]:
    with ReplicatedBus(tmp_path).running() as running:
        yield running


@pytest.mark.servers
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_everything_follows_the_primary(replicated: ReplicatedBus, how: signal.Signals) -> None:
    """Heartbeats, leases and conversations recover by themselves before a replica counts as silent."""
    former = replicated.primary()
    conversations = ValkeyConversations(replicated.url, password=PASSWORD)
    broker = ValkeyQuotaBroker(replicated.url, password=PASSWORD)
    async with connect(replicated) as agent, connect(replicated) as gateway:
        assert await conversations.replace("s", "before", None, b"kept", 600.0)
        before_micro = await _granted(broker, 400)
        await agent.publish(beat(sequence=1))
        async with aclosing(_sequences(gateway)) as heard:
            assert await anext(heard) == 1
        await asyncio.to_thread(_replicated, replicated, former)

        replicated.servers[former].send_signal(how)
        lost_s = time.monotonic()
        sequence = await _heard_again(agent, gateway)
        assert sequence > 1 and time.monotonic() - lost_s < SILENCE_LIMIT_S
        assert replicated.primary() != former

        if how is signal.SIGSTOP:
            with pytest.raises(BusUnavailable):  # the one pooled connection
                await conversations.read("before")
        assert await conversations.read("before") == b"kept"
        after_micro = await _granted(broker, 400)
        refilled = (time.monotonic() - lost_s + 1.0) * _LIMIT / 60 * _MICRO
        assert before_micro + after_micro <= _LIMIT * _MICRO + refilled, "what was spent is not given twice"
        assert after_micro > 0
    await conversations.close()
    await broker.close()


@pytest.mark.servers
async def test_clients_leave_a_former_primary(replicated: ReplicatedBus) -> None:
    former = replicated.primary()
    async with connect(replicated) as bus:
        await bus.publish(beat(sequence=1))
        replicated.servers[former].send_signal(signal.SIGSTOP)
        await _heard_again(bus, bus)
        replicated.servers[former].send_signal(signal.SIGCONT)
        async with asyncio.timeout(_WAIT_S):
            while client(former).info("replication")["role"] != "slave":
                await asyncio.sleep(0.1)
        await bus.publish(beat(sequence=1000, phase="draining"))
        async with aclosing(bus.listen()) as messages:
            (kept,) = await anext(messages)
        assert decode(kept).sequence == 1000


def connect(bus: ReplicatedBus) -> ValkeyBus:
    return ValkeyBus(bus.url, password=PASSWORD)


def _replicated(bus: ReplicatedBus, primary: int) -> None:
    assert client(primary).wait(2, 5000) == 2


async def _sequences(bus: ValkeyBus) -> AsyncGenerator[int, None]:
    async with aclosing(bus.listen()) as messages:
        async for several in messages:
            for line in (line for message in several for line in lines(message)):
                yield decode_line(line).sequence


async def _heard_again(agent: ValkeyBus, gateway: ValkeyBus) -> int:
    """Publish every 200 ms and listen, with retries as in agents and gateways; return the first sequence received."""
    done = asyncio.Event()

    async def speak() -> None:
        sequence = 100
        while not done.is_set():
            sequence += 1
            with suppress(BusUnavailable):
                await agent.publish(beat(sequence=sequence, sent_unix_s=float(sequence)))
            await asyncio.sleep(0.2)

    async def listen() -> int:
        while True:
            try:
                async with aclosing(_sequences(gateway)) as heard:
                    async for sequence in heard:
                        if sequence > 100:
                            return sequence
            except BusUnavailable:
                await asyncio.sleep(0.2)

    async with asyncio.timeout(_WAIT_S), asyncio.TaskGroup() as group:
        group.create_task(speak())
        heard = await listen()
        done.set()
    return heard


async def _granted(broker: ValkeyQuotaBroker, requests: int) -> int:
    """Request a lease for one account until the bus answers; return the grant in millionths of a request."""
    rate = RateRequest(0, _LIMIT, _LIMIT * _MICRO, 60, requests * _MICRO, _MICRO)
    async with asyncio.timeout(_WAIT_S):
        while True:
            try:
                request = LeaseRequest("t:acme", NO_LIMIT, 0, 0, (rate,))
                answer = await broker.request_leases("gw-0", [Group(False, (request,))])
                return answer.granted[0].grants[0].granted_micro[0]
            except BusUnavailable:
                await asyncio.sleep(0.2)
