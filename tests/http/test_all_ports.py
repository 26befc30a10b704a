"""One suite for every HTTP port of shoal: hostile clients must not affect others.

The server must end each attack, with a correct answer or without one. Meanwhile a well-behaved client is answered and
the process's memory growth is bounded. Times here are each port's own limit plus a margin for the machine.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.http.ports import START_S, Port, controller_ports, processes, resident_bytes

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]
PATIENCE_S = 60.0
HEAD_S = 10.0  # the longest that any port waits for a head
MARGIN_S = 10.0
GROWTH_BYTES = 48 * 1024 * 1024
OF_PROCESSES = (
    *("gateway", "gateway with TLS", "gateway's metrics", "registry", "console", "agent", "agent, for peers", "engine"),
    *("adapter cache", "node fetcher", "trace store"),
)
ALL = (*OF_PROCESSES, "controller's health", "webhook")


class Client:
    """A client that writes arbitrary bytes until the server closes the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, data: bytes) -> bool:
        """Send the data and return True if the connection is still open."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except (ConnectionError, OSError):
            return False
        return not self._writer.is_closing()

    async def rest(self, timeout_s: float = PATIENCE_S) -> bytes:
        """Read until the server closes the connection; fail if it does not."""
        got = bytearray()
        async with asyncio.timeout(timeout_s):
            with contextlib.suppress(ConnectionError, OSError):
                while data := await self._reader.read(65536):
                    got += data
        return bytes(got)

    async def head(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self._reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                return error.partial if isinstance(error, asyncio.IncompleteReadError) else b""


@contextlib.asynccontextmanager
async def client(port: Port) -> AsyncIterator[Client]:
    host = "localhost" if port.tls is not None else None
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port.number, ssl=port.tls, server_hostname=host, ssl_handshake_timeout=PATIENCE_S if host else None
    )
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError, OSError):
            await writer.wait_closed()


@pytest.fixture(scope="module")
def of_processes(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[list[Port]]:
    with processes(tmp_path_factory.mktemp("ports"), certificate) as found:
        yield found


@pytest.fixture
async def ports(of_processes: list[Port]) -> AsyncIterator[dict[str, Port]]:
    async with controller_ports() as more:
        found = {port.name: port for port in (*of_processes, *more)}
        for port in found.values():
            await until_it_answers(port)
        yield found


async def until_it_answers(port: Port) -> None:
    async with asyncio.timeout(START_S):
        while True:
            with contextlib.suppress(OSError, AssertionError):
                await behaves(port)
                return
            await asyncio.sleep(0.1)


async def behaves(port: Port) -> None:
    """Send a valid request and check its answer."""
    async with client(port) as caller:
        assert await caller.send(f"GET {port.path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert (await caller.head())[9:12] == b"%d" % port.status


def refused(answer: bytes) -> bool:
    """Return True for one answer with an error status, or for none because the connection was reset."""
    status = answer[9:12]
    return not answer or (
        answer.count(b"HTTP/1.1 ") == 1 and status in (b"400", b"404", b"405", b"408", b"413", b"431")
    )


# attacks that the server ends immediately


async def an_endless_header(port: Port, caller: Client) -> None:
    assert await caller.send(f"GET {port.path} HTTP/1.1\r\nHost: x\r\nx-a: ".encode())
    for _ in range(64 * 16):
        if not await caller.send(b"a" * 65536):
            return
        await asyncio.sleep(0)
    assert (await caller.head()).startswith(b"HTTP/1.1 431 "), "refused long ago, and let go by unread"


async def many_headers(port: Port, caller: Client) -> None:
    head = b"".join(b"x%d: y\r\n" % number for number in range(10_001))
    await caller.send(f"GET {port.path} HTTP/1.1\r\nHost: x\r\n".encode() + head + b"\r\n")
    assert refused(await caller.rest())


async def many_trailers(port: Port, caller: Client) -> None:
    head = f"POST {port.path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n".encode()
    await caller.send(head + b"".join(b"x%d: y\r\n" % number for number in range(10_001)) + b"\r\n")
    await caller.rest()


async def a_method_that_is_none(port: Port, caller: Client) -> None:
    await caller.send(f"BREW {port.path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert refused(await caller.rest())


async def another_protocol(port: Port, caller: Client) -> None:
    await caller.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
    assert refused(await caller.rest())


async def http_1_0_without_a_host(port: Port, caller: Client) -> None:
    """The request is valid: load balancers send it by default."""
    await caller.send(f"GET {port.path} HTTP/1.0\r\n\r\n".encode())
    head, _, body = (await caller.rest()).partition(b"\r\n\r\n")
    assert int(head[9:12]) == port.status, head
    assert b"chunked" not in head.lower()
    assert body or b"content-length: 0" in head.lower()


async def a_length_that_cannot_be(port: Port, caller: Client) -> None:
    await caller.send(f"POST {port.path} HTTP/1.1\r\nHost: x\r\nContent-Length: {10**30}\r\n\r\n".encode())
    assert refused(await caller.rest())


async def a_chunk_size_that_is_none(port: Port, caller: Client) -> None:
    await caller.send(f"POST {port.path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".encode())
    answers = await caller.rest()
    assert answers.count(b"HTTP/1.1 ") <= 2 and b" 500 " not in answers


async def an_endless_chunk_extension(port: Port, caller: Client) -> None:
    """The parser ignores the extension, which costs time of both sides but no memory."""
    await caller.send(f"POST {port.path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;".encode())
    for _ in range(16 * 16):
        if not await caller.send(b"a" * 65536):
            break


async def a_thousand_requests_at_once(port: Port, caller: Client) -> None:
    request = f"GET {port.path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    await caller.send(request * 5000)
    await caller.send(b"\0\r\n\r\n")
    await caller.rest()


async def a_body_that_nobody_asked_for(port: Port, caller: Client) -> None:
    await caller.send(f"POST {port.path} HTTP/1.1\r\nHost: x\r\nContent-Length: {10**12}\r\n\r\n".encode())
    for _ in range(64 * 16):
        if not await caller.send(b"a" * 65536):
            break


Attack = Callable[[Port, Client], Awaitable[None]]
AT_ONCE: tuple[Attack, ...] = (
    *(an_endless_header, many_headers, many_trailers, a_method_that_is_none, another_protocol, http_1_0_without_a_host),
    *(a_length_that_cannot_be, a_chunk_size_that_is_none, an_endless_chunk_extension, a_thousand_requests_at_once),
    a_body_that_nobody_asked_for,
)


@pytest.mark.parametrize("name", ALL)
async def test_immediate_attacks_are_refused_and_port_keeps_serving(ports: dict[str, Port], name: str) -> None:
    port = ports[name]
    before = resident_bytes(port.pid) if port.pid is not None else 0
    for attack in AT_ONCE:
        async with client(port) as caller:
            try:
                await attack(port, caller)
            except (AssertionError, TimeoutError) as error:
                raise AssertionError(f"{attack.__name__}: {error!r}") from error
        await behaves(port)
    if port.pid is not None:
        assert resident_bytes(port.pid) - before < GROWTH_BYTES


# attacks by time, on all ports concurrently


async def says_nothing(port: Port, caller: Client) -> None:
    assert not (await caller.rest(HEAD_S + MARGIN_S)).startswith(b"HTTP/1.1 2")


async def holds_half_a_head(port: Port, caller: Client) -> None:
    await caller.send(f"GET {port.path} HTTP/1.1\r\nHost: x\r\nx-".encode())
    assert refused(await caller.rest(HEAD_S + MARGIN_S))


async def drips(port: Port, caller: Client) -> None:
    await caller.send(f"GET {port.path} HTTP/1.1\r\nHost: x\r\nx-a: ".encode())
    for _ in range(int((HEAD_S + MARGIN_S) * 2)):
        if not await caller.send(b"a"):
            return
        await asyncio.sleep(0.5)
    raise AssertionError("a byte now and then held the connection")


BY_TIME: tuple[Attack, ...] = (says_nothing, holds_half_a_head, drips)


async def test_slow_attacks_time_out_and_port_keeps_serving(ports: dict[str, Port]) -> None:
    async def attacked(port: Port, attack: Attack, crowd: int) -> None:
        async with contextlib.AsyncExitStack() as stack:
            callers = [await stack.enter_async_context(client(port)) for _ in range(crowd)]
            try:
                await asyncio.gather(*(attack(port, caller) for caller in callers))
            except (AssertionError, TimeoutError) as error:
                raise AssertionError(f"{port.name}: {attack.__name__}: {error!r}") from error

    async def served_meanwhile(port: Port) -> None:
        await asyncio.sleep(2.0)  # until all attackers are connected
        try:
            async with asyncio.timeout(HEAD_S / 2):
                await behaves(port)
        except TimeoutError as error:
            raise AssertionError(f"{port.name}: nobody else was answered") from error

    async with asyncio.TaskGroup() as group:
        for port in ports.values():
            group.create_task(attacked(port, holds_half_a_head, port.crowd))
            for attack in (says_nothing, drips):
                group.create_task(attacked(port, attack, 2))
            group.create_task(served_meanwhile(port))
    for port in ports.values():
        await behaves(port)
