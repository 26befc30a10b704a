"""The peers' port on a real socket: silent, slow and oversized clients are disconnected."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

import pytest

from functions.api.ids import EngineName
from functions.http.guard import Bounds
from functions.replica.cold_calls import ColdLoadAnswer
from functions.replica.listeners import PEER_BOUNDS, PeerServer, bind
from functions.replica.peer_app import make_peer_app

pytestmark = pytest.mark.servers
WITHIN_S = 1.0
GENEROUS_S = 60.0
TOKEN = b"authorization: Bearer the-token\r\n"
LOAD = b"POST /adapters/load HTTP/1.1\r\nhost: agent\r\n"
BODY = b'{"engine_name": "acme/bot@sha256:0123456789abcdef"}'
LENGTH = b"content-length: %d\r\n\r\n" % len(BODY)
ANSWER = b'{"state":"loaded","tier":"disk"}'
MAX_CONNECTIONS = 3


async def want(name: EngineName, wait_s: float) -> ColdLoadAnswer:
    await asyncio.sleep(2 * WITHIN_S)  # longer than a request may take to arrive
    return ColdLoadAnswer("loaded", tier="disk")


@asynccontextmanager
async def served(bounds: Bounds) -> AsyncIterator[int]:
    app = make_peer_app(lambda path: ("the-token",), want, lambda answer: None)
    server = PeerServer(app, bind("127.0.0.1", 0, "PEER_PORT"), bounds, MAX_CONNECTIONS)
    async with asyncio.timeout(GENEROUS_S), asyncio.TaskGroup() as group:
        group.create_task(server.run())
        yield server.port
        server.stop()


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with served(replace(PEER_BOUNDS, head_s=WITHIN_S, body_s=WITHIN_S)) as port:
        yield port


@pytest.fixture
async def patient_port() -> AsyncIterator[int]:
    async with served(replace(PEER_BOUNDS, head_s=2 * GENEROUS_S, body_s=2 * GENEROUS_S)) as port:
        yield port


class Connection:
    """Client that sends raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self._writer = reader, writer

    async def send(self, content: bytes) -> None:
        self._writer.write(content)
        await self._writer.drain()

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def until_closed(self) -> bytes:
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    async def drip(self, content: bytes) -> None:
        """Send single bytes with pauses; raises ConnectionError when the server disconnects."""
        for at in range(len(content)):
            await self.send(content[at : at + 1])
            await asyncio.sleep(WITHIN_S / 10)


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_an_answer_may_take_its_time_and_the_connection_serves_the_next_request(port: int) -> None:
    async with connected(port) as connection:
        for _ in range(2):
            await connection.send(LOAD + TOKEN + LENGTH + BODY)
            assert (await connection.head()).startswith(b"HTTP/1.1 200 ")
            assert await connection.reader.readexactly(len(ANSWER)) == ANSWER


@pytest.mark.parametrize(
    "sent",
    [b"", b"\r\n", LOAD, LOAD + TOKEN + b"content-length: 9\r\n\r\n", LOAD + b"content-length: 9\r\n\r\n{"],
    ids=["nothing", "an empty line", "half a head", "no body", "half a body without the token"],
)
async def test_request_incomplete_in_time_is_disconnected(port: int, sent: bytes) -> None:
    async with connected(port) as connection:
        await connection.send(sent)
        await connection.until_closed()


@pytest.mark.parametrize("head", [b"x-long: ", b"content-length: 9999\r\n\r\n"], ids=["head", "body"])
async def test_dripping_client_is_disconnected(port: int, head: bytes) -> None:
    async with connected(port) as connection:
        await connection.send(LOAD + head)
        with pytest.raises(ConnectionError):
            await connection.drip(b"x" * 500)


async def test_endless_head_is_disconnected_at_once(patient_port: int) -> None:
    async with connected(patient_port) as connection:
        with suppress(ConnectionError):
            await connection.send(LOAD + b"x-long: " + b"x" * 1024 * 1024)
        answer = await connection.until_closed()
        assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")


async def test_at_the_connection_limit_the_longest_silent_client_is_disconnected(patient_port: int) -> None:
    async with AsyncExitStack() as stack:
        served, *silent = [await stack.enter_async_context(connected(patient_port)) for _ in range(MAX_CONNECTIONS)]
        await served.send(LOAD + TOKEN + LENGTH + BODY)
        await asyncio.sleep(0.1)
        newcomer = await stack.enter_async_context(connected(patient_port))
        assert await silent[0].until_closed() == b""
        await newcomer.send(LOAD + TOKEN + LENGTH + BODY)
        for connection in (served, newcomer):
            assert (await connection.head()).startswith(b"HTTP/1.1 200 ")


async def test_an_upgrade_needs_the_token_as_every_request(port: int) -> None:
    upgrade = b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    async with connected(port) as connection:
        upgrade += b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        await connection.send(b"GET /adapters/load HTTP/1.1\r\nhost: agent\r\n" + upgrade)
        assert (await connection.head()).startswith(b"HTTP/1.1 401 ")
