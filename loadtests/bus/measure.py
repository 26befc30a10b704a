"""CPU time of one message of each kind, at its sender, at Valkey and at a gateway. Wall time is never used.

at Valkey       CPU time from INFO, at several numbers of subscribers; a line through these points gives the cost of a
                message and of each subscriber
at a gateway    the thread's CPU time while the real feed folds heartbeats from a real connection
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
import uvloop

from functions.fleet import heartbeat as heartbeats
from functions.fleet import prefix_updates, session_homes
from functions.fleet.heartbeat_gathering import GATHERED_CHANNEL
from functions.fleet.prefix_view import PrefixView
from functions.fleet.quota_leases import ValkeyQuotaBroker
from functions.fleet.valkey_bus import (
    HOMES_CHANNEL,
    PREFIX_ASKS_CHANNEL,
    PREFIXES_CHANNEL,
    ValkeyBus,
)
from functions.gateway import feeds
from functions.gateway.assembly import make_services
from functions.gateway.gateway import Gateway
from functions.gateway.limits import Limits
from functions.gateway.metrics import Metrics
from loadtests.bus import messages, peers
from loadtests.bus.server import Server

SUBSCRIBERS = (1, 10, 20, 40)
_SEQUENCE = count(1)
_WARM_UP = 200
_AT_ONCE = 50
_SPEAKERS = 200  # replicas that send in turn; by the end of the warm-up each has sent a whole heartbeat


@dataclass(frozen=True, slots=True)
class Sent:
    """Costs of one kind of message: bytes, and microseconds of CPU time."""

    message_bytes: int
    sender_us: float
    server_us: float
    subscriber_us: float  # the server's additional time for each subscriber
    in_bytes: float
    out_bytes: float  # for each subscriber


@dataclass(frozen=True, slots=True)
class Heard:
    """Costs of one heartbeat at a gateway that knows the whole fleet."""

    gateway_us: float
    heard_per_s: float
    catch_up_s: float  # CPU time to read the stored heartbeats of all replicas


@dataclass(frozen=True, slots=True)
class Leases:
    call_us: float  # the server's CPU time for an empty call
    account_us: float  # the server's additional CPU time for each account
    in_bytes: float  # for each account
    out_bytes: float
    gateway_us: float  # the gateway's CPU time for each account: message and answer


def heartbeat_cost(server: Server, each: int) -> Sent:
    """Measure heartbeats as agents send them, 50 concurrently: every tenth is a whole one."""

    async def send(bus: ValkeyBus) -> None:
        sequences = list(islice(_SEQUENCE, _AT_ONCE))
        heartbeats = (messages.heartbeat(each % _SPEAKERS, each, each / _SPEAKERS) for each in sequences)
        await asyncio.gather(*(bus.publish(heartbeat) for heartbeat in heartbeats))

    size = len(heartbeats.encode(messages.heartbeat(1, 1)))
    making_us = _process_us(lambda: messages.heartbeat(1, next(_SEQUENCE)), each)
    sent = _sent(server, GATHERED_CHANNEL, size, send, each // _AT_ONCE)
    figures = (sent.sender_us, sent.server_us, sent.subscriber_us, sent.in_bytes, sent.out_bytes)
    sender_us, *others = (figure / _AT_ONCE for figure in figures)
    return Sent(size, sender_us - making_us, *others)


def homes_cost(server: Server, conversations: int, each: int) -> Sent:
    batch = messages.home_batch(conversations)
    return _sent(server, HOMES_CHANNEL, len(batch), lambda bus: bus.publish_homes(batch, 2.0), each)


def prefix_cost(server: Server, blocks: int, each: int) -> Sent:
    delta = messages.prefix_delta(2, blocks)
    return _sent(server, PREFIXES_CHANNEL, len(delta), lambda bus: bus.publish_prefixes(delta), each)


def ask_cost(server: Server, each: int) -> Sent:
    ask = messages.prefix_ask(1)
    return _sent(server, PREFIX_ASKS_CHANNEL, len(ask), lambda bus: bus.publish_prefix_request(ask), each)


def _sent(server: Server, channel: str, size: int, send: Callable[[ValkeyBus], Awaitable[None]], each: int) -> Sent:
    """Call `send` `each` times for each number of subscribers, and fit a line through the server's CPU time."""
    figures = []
    for subscribers in SUBSCRIBERS:
        with server.listeners([channel], subscribers):
            figures.append(asyncio.run(_sent_once(server, send, each)))
    sender_us, server_us, in_bytes, out_bytes = zip(*figures, strict=True)
    slope, start = np.polyfit(SUBSCRIBERS, server_us, 1)
    out_slope, _ = np.polyfit(SUBSCRIBERS, out_bytes, 1)
    return Sent(size, min(sender_us), float(start), float(slope), min(in_bytes), float(out_slope))


async def _sent_once(
    server: Server, send: Callable[[ValkeyBus], Awaitable[None]], each: int
) -> tuple[float, float, float, float]:
    """Return the sender's and the server's microseconds and the bytes in and out, all per message."""
    async with ValkeyBus(server.url) as bus:
        for _ in range(_WARM_UP):
            await send(bus)
        (in_before, out_before), server_s, own_s = server.moved_bytes(), server.cpu_s(), time.process_time()
        for _ in range(each):
            await send(bus)
        own_s, server_s = time.process_time() - own_s, server.cpu_s() - server_s
        in_after, out_after = server.moved_bytes()
    moved = (in_after - in_before) / each, (out_after - out_before) / each
    return 1e6 * own_s / each, 1e6 * server_s / each, *moved


def heard_cost(server: Server, replicas: int, per_s: float, seconds: float) -> Heard:
    """Measure the gateway's own feed at `per_s` heartbeats a second, with all replicas known."""
    return uvloop.run(_receive_heartbeats(server, replicas, per_s, seconds))


async def _receive_heartbeats(server: Server, replicas: int, per_s: float, seconds: float) -> Heard:
    async with ValkeyBus(server.url) as bus:
        server.store_heartbeats(messages.heartbeat(number, 0) for number in range(replicas))
        gateway = Gateway(
            make_services(
                pepper=b"m" * 32, limits=Limits(), metrics=Metrics(), clock=time.monotonic, wall_clock=time.time
            )
        )
        started_s = time.thread_time()
        following = asyncio.create_task(feeds.follow_bus(gateway, bus))  # noqa: TID251  # ended below
        await _until(lambda: len(gateway.services.fleet.heartbeats()) >= replicas)
        catch_up_s = time.thread_time() - started_s
        with server.speaking(_SPEAKERS, per_s):
            await _until(lambda: _sequence(gateway) >= peers.FIRST_SEQUENCE + 2 * _SPEAKERS)  # whole ones sent
            before, cpu_s, wall_s = _sequence(gateway), time.thread_time(), time.monotonic()
            await asyncio.sleep(seconds)
            heard = _sequence(gateway) - before
            spent_s = time.thread_time() - cpu_s
        following.cancel()
        return Heard(1e6 * spent_s / heard, heard / (time.monotonic() - wall_s), catch_up_s)


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  # there is no event to wait for
        await asyncio.sleep(0.05)


def _sequence(gateway: Gateway) -> int:
    return max(known.sequence for known, _ in gateway.services.fleet.heartbeats())


def lease_cost(server: Server, calls: int) -> Leases:
    return asyncio.run(_leases(server, calls))


async def _leases(server: Server, calls: int) -> Leases:
    broker = ValkeyQuotaBroker(server.url)
    sizes = (0, 1, 32, 128)
    server_us, own_us, in_bytes, out_bytes = [], [], [], []
    for accounts in sizes:
        for gateway in range(4):
            await broker.request_leases(f"gw-{gateway}", messages.lease_round(accounts))
        groups = messages.lease_round(accounts)
        (bytes_in, bytes_out), cpu_s, own_s = server.moved_bytes(), server.cpu_s(), time.process_time()
        for _ in range(calls):
            await broker.request_leases("gw-0", groups)
        own_us.append(1e6 * (time.process_time() - own_s) / calls)
        server_us.append(1e6 * (server.cpu_s() - cpu_s) / calls)
        now_in, now_out = server.moved_bytes()
        in_bytes.append((now_in - bytes_in) / calls)
        out_bytes.append((now_out - bytes_out) / calls)
    await broker.close()

    def slope(values: list[float]) -> float:
        return float(np.polyfit(sizes, values, 1)[0])

    return Leases(server_us[0], slope(server_us), slope(in_bytes), slope(out_bytes), slope(own_us))


def homes_received_us(conversations: int, each: int) -> float:
    """Return the gateway's CPU time to decode and apply one batch of session homes."""
    gateway = make_services(
        pepper=b"m" * 32, limits=Limits(), metrics=Metrics(), clock=time.monotonic, wall_clock=lambda: 1_800_000_000.0
    )
    batches = [messages.home_batch(conversations) for _ in range(each)]
    taken = iter(batches)
    return _process_us(
        lambda: gateway.router.homes.receive_batch(session_homes.decode(next(taken)), 1_800_000_000.0), each
    )


def prefix_received_us(blocks: int, each: int) -> float:
    """Return the gateway's CPU time to decode and apply one delta."""
    view = PrefixView()
    view.fold(prefix_updates.decode(messages.prefix_delta(0, 0)), time.monotonic())
    deltas = iter([messages.prefix_delta(sequence, blocks) for sequence in range(1, each + 1)])
    return _process_us(lambda: view.fold(prefix_updates.decode(next(deltas)), time.monotonic()), each)


def _process_us(work: Callable[[], object], each: int) -> float:
    started_s = time.process_time()
    for _ in range(each):
        work()
    return 1e6 * (time.process_time() - started_s) / each
