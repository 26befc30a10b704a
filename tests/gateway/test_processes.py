"""The gateway as a process: starts without a control plane, restarts without a refused connection, drains, ends."""

import asyncio
import contextlib
import signal
import socket
import ssl
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from functions.fleet.rollout_stats import EvidenceBook
from functions.fleet.valkey_bus import STATS_CHANNEL, ValkeyBus
from functions.telemetry.trace_row import rows
from tests.gateway import sse
from tests.gateway.client_rig import STREAM_BODY, post
from tests.gateway.live import LiveClient, PlayedEngine, Script, Served, well
from tests.gateway.processes import GatewayProcess, beating, exited, valkey
from tests.gateway.rig import ROLLOUT, in_rollout

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]  # starts several processes and waits for each


def lasting(until: asyncio.Event) -> Script:
    """Return a script whose streams last until the event is set; whole answers are immediate."""

    async def script(served: Served) -> None:
        if not served.body.get("stream"):
            await well(served)
            return
        await served.begin_stream()
        while not until.is_set():
            await served.event(sse.token(served.model, "."))
            await asyncio.sleep(0.1)
        await served.event(sse.finish(served.model) + sse.DONE)
        await served.end_stream()

    return script


async def endless(served: Served) -> None:
    await served.begin_stream()
    while True:
        await served.event(sse.token(served.model, "."))
        await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def fleet(bus_url: str, script: Script) -> AsyncIterator[PlayedEngine]:
    played = PlayedEngine("r0", script)
    server = await asyncio.start_server(played.on_connection, "127.0.0.1", 0)
    async with beating(bus_url, "r0", server.sockets[0].getsockname()[1]):
        yield played
    server.close()
    for served in played.served:
        served.writer.transport.abort()
    await server.wait_closed()


@contextlib.asynccontextmanager
async def connected(gateway: GatewayProcess, trust: ssl.SSLContext | None) -> AsyncIterator[LiveClient]:
    port = gateway.port if trust else gateway.plain_port
    name = "localhost" if trust else None
    caller = LiveClient(*await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname=name))
    try:
        yield caller
    finally:
        caller.leave()


@pytest.fixture
def gateway(tmp_path: Path, certificate: tuple[Path, Path]) -> Iterator[GatewayProcess]:
    with valkey(tmp_path) as bus_url:
        yield GatewayProcess(tmp_path, bus_url, certificate)


async def test_starts_without_a_registry_and_serves_on_every_port(
    gateway: GatewayProcess, trust: ssl.SSLContext
) -> None:
    async with fleet(gateway.bus_url, well):
        with gateway.start() as process:
            await gateway.ready()
            for over in (trust, None):
                async with connected(gateway, over) as caller:
                    await caller.send(post())
                    assert (await caller.answer()).status == 200
            metrics = await asyncio.to_thread(read, f"http://127.0.0.1:{gateway.metrics_port}/metrics")
            assert 'shoal_requests_total{class="interactive",code="200",model="acme/bot"} 2.0' in metrics
            assert 'shoal_replica_state{replica="r0",state="ready"} 1.0' in metrics
            process.send_signal(signal.SIGTERM)
            assert await exited(process) == 0
    assert "Traceback" not in gateway.log()
    assert [(row.status, row.replica_id) for row in rows(gateway.folder / "traces")] == [(200, "r0")] * 2


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30.0) as response:
        text: str = response.read().decode()
        return text


async def test_successor_takes_over_while_streams_are_open(gateway: GatewayProcess, trust: ssl.SSLContext) -> None:
    """Streams finish at the old process. No new connection is refused, reset or answered with anything but 200."""
    failures: list[str] = []
    answered = 0
    stop = asyncio.Event()

    async def call_anew(over: ssl.SSLContext | None) -> None:
        nonlocal answered
        while not stop.is_set():
            try:
                async with connected(gateway, over) as caller:
                    await caller.send(post(connection="close"))
                    answer = await caller.answer()
                if answer.status != 200:
                    failures.append(f"{answer.status}: {answer.body!r}")
                answered += 1
            except (OSError, AssertionError, TimeoutError) as error:
                failures.append(repr(error))
            await asyncio.sleep(0.01)

    enough = asyncio.Event()
    async with fleet(gateway.bus_url, lasting(enough)), contextlib.AsyncExitStack() as open_streams:
        with gateway.start() as old:
            await gateway.ready()
            ways = (trust, None) * 10
            streams = [await open_streams.enter_async_context(connected(gateway, over)) for over in ways]
            for stream in streams:
                await stream.send(post(STREAM_BODY))
                await stream.until(b'"content":"."')
            calling = asyncio.gather(*(call_anew(over) for over in (trust, None)))
            with gateway.start() as new:
                async with asyncio.timeout(60.0):
                    while "a successor serves the listeners" not in gateway.log():
                        await asyncio.sleep(0.05)
                await asyncio.sleep(1.0)  # the old process drains and the new one answers, both for a while
                assert old.poll() is None, "it waits for its streams"
                enough.set()
                bodies = await asyncio.gather(*(stream.answer() for stream in streams))
                assert await exited(old) == 0
                before = answered
                async with asyncio.timeout(60.0):
                    while answered < before + 5:
                        await asyncio.sleep(0.05)
                stop.set()
                await calling
                assert new.poll() is None
    assert failures == []
    assert before > 10, "calls were made throughout"
    assert all(body.body.endswith(sse.DONE) and b"error" not in body.body for body in bodies)
    assert "Traceback" not in gateway.log()


async def test_sigterm_refuses_new_connections_and_finishes_streams(gateway: GatewayProcess) -> None:
    enough = asyncio.Event()
    async with fleet(gateway.bus_url, lasting(enough)):
        with gateway.start() as process:
            await gateway.ready()
            async with connected(gateway, None) as caller:
                await caller.send(post(STREAM_BODY))
                await caller.until(b'"content":"."')
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(60.0):
                    while not refused(gateway):
                        await asyncio.sleep(0.05)
                enough.set()
                answer = await caller.answer()
                assert answer.body.endswith(sse.DONE)
            assert await exited(process) == 0


def refused(gateway: GatewayProcess) -> bool:
    for port in (gateway.port, gateway.plain_port):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return False
    return True


async def test_handshake_under_way_at_sigterm_is_answered(gateway: GatewayProcess, trust: ssl.SSLContext) -> None:
    """A client on a slow line that was accepted before the drain is not new."""
    async with fleet(gateway.bus_url, well):
        with gateway.start() as process:
            await gateway.ready()
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            await asyncio.sleep(0.3)  # nothing tells a client that it was accepted
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(1.0)  # its slow line
            await writer.start_tls(trust, server_hostname="localhost")
            caller = LiveClient(reader, writer)
            await caller.send(post())
            answer = await caller.answer()
            assert answer.status == 200, answer.body
            caller.leave()
            assert await exited(process) == 0


async def test_drain_timeout_ends_streams_with_restarting(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    with valkey(tmp_path) as bus_url:
        gateway = GatewayProcess(tmp_path, bus_url, certificate, drain_timeout_s=1.0)
        async with fleet(bus_url, endless) as played:
            with gateway.start() as process:
                await gateway.ready()
                async with connected(gateway, None) as caller:
                    await caller.send(post(STREAM_BODY))
                    await caller.until(b'"content":"."')
                    process.send_signal(signal.SIGTERM)
                    answer = await caller.answer()
                    assert b'"code":"restarting"' in answer.body and b"[DONE]" not in answer.body
                assert await exited(process) == 0
                await played.dropped_within_s(time.monotonic())


async def test_gateway_starts_after_a_killed_predecessor(gateway: GatewayProcess) -> None:
    async with fleet(gateway.bus_url, well):
        with gateway.start() as old:
            await gateway.ready()
            old.kill()
            old.wait()
            with gateway.start():
                await gateway.ready()


async def test_occupied_port_is_reported(gateway: GatewayProcess) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the port is kept in TIME_WAIT (tests/ports.py)
        taken.bind(("127.0.0.1", gateway.plain_port))
        taken.listen()
        with gateway.start() as process:
            assert await exited(process) == 1
    assert f"cannot listen on 127.0.0.1:{gateway.plain_port}" in gateway.log()
    assert "SHOAL_GATEWAY_PLAIN_PORT" in gateway.log() and "Traceback" not in gateway.log()


async def test_evidence_of_the_drain_is_published_before_exit(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    """Rollout evidence of streams that outlive the order to stop is published before the process ends."""
    finish, book = asyncio.Event(), EvidenceBook()
    with valkey(tmp_path) as bus_url:
        gateway = GatewayProcess(tmp_path, bus_url, certificate, sections=in_rollout())
        async with fleet(bus_url, lasting(finish)), contextlib.AsyncExitStack() as callers:
            with gateway.start() as process:
                await gateway.ready()
                streams = [await callers.enter_async_context(connected(gateway, None)) for _ in range(5)]
                for caller in streams:
                    await caller.send(post(STREAM_BODY))
                    await caller.until(b"data: ")
                async with ValkeyBus(bus_url) as bus:
                    following = asyncio.create_task(follow(bus, book))
                    while not (await bus._client.pubsub_numsub(STATS_CHANNEL))[0][1]:
                        await asyncio.sleep(0.01)
                    process.send_signal(signal.SIGTERM)
                    finish.set()
                    for caller in streams:
                        await caller.until(b"[DONE]")
                    assert await exited(process) == 0
                    async with asyncio.timeout(60.0):
                        while counted(book) < 5:
                            await asyncio.sleep(0.02)
                    following.cancel()
    assert counted(book) == 5 and "Traceback" not in gateway.log()


async def follow(bus: ValkeyBus, book: EvidenceBook) -> None:
    async for message in bus.stats():
        book.receive_message(message, time.time())


def counted(book: EvidenceBook) -> int:
    evidence = book.evidence(ROLLOUT, 0)
    assert evidence.candidate.errors == evidence.control.errors == 0
    return evidence.candidate.requests + evidence.control.requests
