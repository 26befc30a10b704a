"""LoadClient on real sockets: the meaning of each answer of an agent, and of missing answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import orjson
import pytest

from functions.api.ids import EngineName, ReplicaId
from functions.decisions.routing.choice import ReplicaView
from functions.fleet.agent_credentials import agent_credential
from functions.gateway.routing import load_client
from functions.gateway.routing.load_client import LoadAnswer, LoadClient, LoadState
from tests.artifacts.conftest import free_ports
from tests.gateway.rig import POOL

NAME = EngineName("acme/bot@sha256:0123456789abcdef")
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def replica(peer_port: int, host: str = "127.0.0.1") -> ReplicaView:
    return ReplicaView(ReplicaId("r0"), POOL, host, 1, "ready", 0, 0, 0.0, frozenset(), 1.0, 1.0, peer_port=peer_port)


@asynccontextmanager
async def agent(talk: Talk) -> AsyncIterator[int]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
            await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@asynccontextmanager
async def asking(token: str = "secret") -> AsyncIterator[LoadClient]:
    client = LoadClient(token)
    yield client
    await client.close()


def says(status: int, body: bytes, seen: list[bytes] | None = None) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        content = await reader.readexactly(length)
        if seen is not None:
            seen.extend([head, content])
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))

    return talk


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b'{"state":"loaded"}', LoadAnswer("loaded")),
        (404, b'{"reason":"not in the snapshot"}', LoadAnswer("unknown", "not in the snapshot")),
        (409, b'{"reason":"all busy"}', LoadAnswer("no_room", "all busy")),
        (422, b'{"reason":"rank\\n64"}', LoadAnswer("refused", "rank 64")),
        (503, b'{"reason":"draining"}', LoadAnswer("not_ready", "draining")),
        (504, b"{}", LoadAnswer("slow")),
        (401, b"{}", LoadAnswer("unreachable", "status 401")),
        (500, b"<html>", LoadAnswer("unreachable", "status 500")),
        (422, b"not json", LoadAnswer("refused")),
        (422, b'{"reason":7}', LoadAnswer("refused")),
        (422, b'{"x":' + b"[" * 1500, LoadAnswer("refused")),
        (422, b'{"reason":"' + b"x" * 1000 + b'"}', LoadAnswer("refused", "x" * 300)),
        (422, b'{"reason":"' + b"x" * 100_000 + b'"}', LoadAnswer("refused")),
    ],
)
async def test_agent_answers_map_to_load_states(status: int, body: bytes, expected: LoadAnswer) -> None:
    async with agent(says(status, body)) as port, asking() as client:
        assert await client.load(replica(port), NAME, 30.0) == expected


async def test_load_request_has_credential_and_body() -> None:
    seen: list[bytes] = []
    async with agent(says(200, b"{}", seen)) as port, asking() as client:
        await client.load(replica(port), NAME, 7.5)
    head, body = seen
    credential = agent_credential("secret", "127.0.0.1", port)
    assert head.startswith(b"POST /adapters/load HTTP/1.1\r\n") and b"Bearer %b\r\n" % credential.encode() in head
    assert orjson.loads(body) == {"engine_name": NAME, "wait_s": 7.5}


async def test_agents_never_receive_the_internal_token() -> None:
    """The address comes from a heartbeat and the connection is plain; the internal token also opened the registry."""
    seen: list[bytes] = []
    async with agent(says(200, b"{}", seen)) as liar, agent(says(200, b"{}", seen)) as other, asking() as client:
        for port in (liar, other):
            await client.load(replica(port), NAME, 1.0)
    heads = seen[::2]
    assert not any(b"secret" in head for head in heads)
    shown = {line for head in heads for line in head.split(b"\r\n") if line.lower().startswith(b"authorization")}
    assert len(shown) == 2, "what one is shown opens nothing at another"


async def test_connections_to_agents_are_not_kept() -> None:
    """A connection pool might close one on expiry just as a call got it: the agent would seem unreachable."""
    over = asyncio.Event()

    async def keeps(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await says(200, b"{}")(reader, writer)
        await writer.drain()
        assert await reader.read() == b""
        over.set()

    async with agent(keeps) as port, asking() as client, asyncio.timeout(5):
        assert (await client.load(replica(port), NAME, 1.0)).state == "loaded"
        await over.wait()


async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()


async def talks_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-x\r\n")


@pytest.mark.parametrize("talk", [hangs_up, talks_nonsense])
async def test_interrupted_agent_answer_is_unreachable(talk: Talk) -> None:
    async with agent(talk) as port, asking() as client:
        assert (await client.load(replica(port), NAME, 30.0)).state == "unreachable"


async def test_silent_agent_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    monkeypatch.setattr(load_client, "_READ_SLACK_S", 0.1)
    async with agent(silent) as port, asking() as client:
        assert (await client.load(replica(port), NAME, 0.1)).state == "unreachable"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "no.such.host.invalid", "x" * 300, "a b"])
async def test_closed_port_is_unreachable(host: str) -> None:
    async with asking() as client:
        found: LoadState = (await client.load(replica(free_ports(1)[0], host), NAME, 30.0)).state
    assert found == "unreachable"
