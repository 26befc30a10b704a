"""tools.calls: addresses that may be reached, what is sent, and a sentence for every failure. A real HTTPS server
answers."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from functions.api.snapshot import ToolEntry
from functions.gateway.chat.tools.calls import ToolAnswer, ToolCaller, ToolPolicy
from functions.gateway.chat.tools.declared import ToolCall
from tests.gateway.certificates import self_signed

pytestmark = pytest.mark.servers
LOOPBACK = (ip_network("127.0.0.0/8"),)
RAIN = ToolAnswer("rain", "answered")
CALL = ToolCall("c1", "weather", b'{"city":"Paris"}')
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
HOST = "localhost"  # the name on the test's certificate


@dataclass
class Tool:
    """A server that records its requests and sends the answer set by the test."""

    answer: bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nrain"
    requests: list[bytes] = field(default_factory=list)
    port: int = 0
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    async def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            self.requests.append(head + await reader.readexactly(length))
            await self.may_answer.wait()
            writer.write(self.answer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the caller gave up
        finally:
            writer.close()


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("tool"))


@asynccontextmanager
async def serving(identity: tuple[Path, Path], **changes: Any) -> AsyncIterator[Tool]:
    tool = Tool(**changes)
    tool.may_answer.set()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*identity)
    server = await asyncio.start_server(tool.on_connection, "127.0.0.1", 0, ssl=tls)
    tool.port = server.sockets[0].getsockname()[1]
    try:
        yield tool
    finally:
        tool.may_answer.set()
        server.close()


def entry(port: int, host: str = HOST, **changes: Any) -> ToolEntry:
    fields: dict[str, Any] = {"timeout_s": 30.0, "parameters": "{}", "description": ""} | changes
    return ToolEntry(name="weather", url=f"https://{host}:{port}/v1/weather?units=c", **fields)


def caller(identity: tuple[Path, Path], **changes: Any) -> ToolCaller:
    resolver = changes.pop("resolver", lambda host, port: ["127.0.0.1"])
    return ToolCaller(ToolPolicy(**{"networks": LOOPBACK, "ca_file": identity[0], **changes}), resolver)


async def test_a_call_carries_the_arguments_and_nothing_else(identity: tuple[Path, Path]) -> None:
    async with serving(identity) as tool:
        assert await caller(identity).call("acme", entry(tool.port), CALL) == RAIN
    head, _, body = tool.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/weather?units=c HTTP/1.1\r\n") and body == CALL.arguments
    assert f"host: {HOST}:{tool.port}".encode() in head.lower()
    assert b"authorization" not in head.lower() and b"cookie" not in head.lower()


async def test_secret_is_read_only_for_its_tenant(identity: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "weather").write_text("s3cret\n")
    it = caller(identity, secrets_dir=tmp_path)
    async with serving(identity) as tool:
        assert await it.call("acme", entry(tool.port, secret="weather"), CALL) == RAIN
        assert b"authorization: bearer s3cret" in tool.requests[0].lower()
        refused = await it.call("globex", entry(tool.port, secret="weather"), CALL)
    assert refused == ("The tool could not be reached.", "unreachable") and len(tool.requests) == 1


async def test_mounted_secret_names_cannot_cross_tenants(identity: tuple[Path, Path], tmp_path: Path) -> None:
    """`acme.eu` must not get another tenant's secret, whatever the joined name."""
    (tmp_path / "acme.weather").write_text("of acme")
    (tmp_path / "acme.eu.weather").write_text("of acme.eu")
    it = caller(identity, secrets_dir=tmp_path)
    async with serving(identity) as tool:
        assert await it.call("acme", entry(tool.port, secret="weather"), CALL) == RAIN
        assert b"authorization: bearer of acme\r\n" in tool.requests[0].lower()
        refused = await it.call("acme", entry(tool.port, secret="eu.weather"), CALL)
    assert refused.outcome == "unreachable" and len(tool.requests) == 1


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["10.0.0.1"], ["169.254.169.254"], ["::1"], ["1.1.1.1", "10.0.0.1"], ["64:ff9b::7f00:1"], ["x"]],
)
async def test_private_addresses_are_not_reached(identity: tuple[Path, Path], addresses: list[str]) -> None:
    async with serving(identity) as tool:
        it = caller(identity, networks=(), resolver=lambda host, port: addresses)
        assert await it.call("acme", entry(tool.port), CALL) == (
            "The tool's address cannot be used.",
            "address_refused",
        )
    assert not tool.requests


async def test_a_name_is_resolved_once_and_pinned(identity: tuple[Path, Path]) -> None:
    """DNS rebinding: a second lookup would return another address."""
    asked: list[str] = []

    def resolver(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

    async with serving(identity) as tool:
        assert await caller(identity, resolver=resolver).call("acme", entry(tool.port), CALL) == RAIN
    assert asked == [HOST]


async def test_certificate_is_checked_against_the_host_name(identity: tuple[Path, Path]) -> None:
    async with serving(identity) as tool:
        answer = await caller(identity).call("acme", entry(tool.port, host="other.example.com"), CALL)
    assert answer == ("The tool could not be reached.", "unreachable") and not tool.requests


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (b"HTTP/1.1 500 X\r\ncontent-length: 6\r\n\r\nsecret", "status 500"),
        (b"HTTP/1.1 302 X\r\nlocation: https://localhost/\r\ncontent-length: 0\r\n\r\n", "status 302"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2000\r\n\r\n" + b"x" * 2000, "over 100 bytes"),
        (CHUNKED + b"40\r\n%b\r\n" % (b"x" * 64) * 2 + b"0\r\n\r\n", "over 100 bytes"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort", "could not be reached"),
        (b"nonsense\r\n\r\n", "could not be reached"),
        (b"", "could not be reached"),
    ],
)
async def test_tool_failures_are_explained(identity: tuple[Path, Path], answer: bytes, word: str) -> None:
    async with serving(identity, answer=answer) as tool:
        said = await caller(identity).call("acme", entry(tool.port, max_bytes=100), CALL)
    assert word in said.content and "secret" not in said.content and said.outcome != "answered"


async def test_hanging_tool_times_out(identity: tuple[Path, Path]) -> None:
    async with serving(identity) as tool:
        tool.may_answer.clear()
        said = await caller(identity).call("acme", entry(tool.port, timeout_s=0.5), CALL)
    assert said == ("The tool took over 0.5 s.", "late")


async def test_one_tenants_slow_tools_leave_room_for_others(identity: tuple[Path, Path]) -> None:
    async with serving(identity) as fast, serving(identity) as slow:
        slow.may_answer.clear()
        it = caller(identity)
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(it.call("acme", entry(slow.port), CALL)) for _ in range(100)]
            async with asyncio.timeout(60):
                while not slow.requests:
                    await asyncio.sleep(0.01)
            assert await it.call("globex", entry(fast.port), CALL) == RAIN
            for task in waiting:
                task.cancel()
    assert len(slow.requests) <= 16


async def test_closed_port_is_reported_as_unreachable(identity: tuple[Path, Path]) -> None:
    async with serving(identity) as tool:
        pass
    unreachable = ("The tool could not be reached.", "unreachable")
    assert await caller(identity).call("acme", entry(tool.port), CALL) == unreachable


async def test_a_call_with_a_problem_is_not_made(identity: tuple[Path, Path]) -> None:
    it: Callable[..., Awaitable[ToolAnswer]] = caller(identity, networks=()).call
    assert await it("acme", entry(1), ToolCall("c", "weather", problem="no")) == ("no", "not_made")
