"""Fetch a chunk from a peer: each failure has a name, and every answer is bounded."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from functions.api.ids import Digest
from functions.artifacts.manifest import Chunk
from functions.artifacts.swarm.chunk_clients import Bandwidth, PeerClient, PeerFailed
from functions.decisions.distribution.chunk_bits import encode
from functions.decisions.distribution.peers import PeerFailure

DIGEST = Digest("sha256:" + "a" * 64)
CHUNK = Chunk("b" * 64, 1_000_000, "model.safetensors", 0)
PEER = "10.0.0.2:8500"


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Drip(httpx.AsyncByteStream):
    """One byte a second, for ever."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.sent = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.clock.now_s += 1.0
            self.sent += 1
            yield b"x"


class Body(httpx.AsyncByteStream):
    """Body that is not read ahead, like that of a real answer."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.content


def client(answer: httpx.Response | Exception, clock: Clock | None = None) -> PeerClient:
    def respond(request: httpx.Request) -> httpx.Response:
        assert str(request.url) in (
            f"http://{PEER}/chunks/{CHUNK.sha256}?artifact={DIGEST.replace(':', '%3A')}",
            f"http://{PEER}/swarm/{DIGEST}",
        )
        if isinstance(answer, Exception):
            raise answer
        return answer

    http = httpx.AsyncClient(transport=httpx.MockTransport(respond))
    return PeerClient(http, DIGEST, 12, Bandwidth(), clock=clock or Clock())


async def failure_of(answer: httpx.Response | Exception, clock: Clock | None = None) -> PeerFailed:
    with pytest.raises(PeerFailed) as caught:
        await client(answer, clock).read(PEER, CHUNK)
    return caught.value


async def test_a_chunk_comes_with_its_senders_bitmap() -> None:
    answer = httpx.Response(200, stream=Body(b"weights"), headers={"x-shoal-have": encode(0b101, 12)})
    received = await client(answer).read(PEER, CHUNK)
    assert (received.content, received.have) == (b"weights", 0b101)


@pytest.mark.parametrize("header", ["", "AAAAAAAA", "????", "//8="])
async def test_an_odd_bitmap_does_not_cost_the_chunk(header: str) -> None:
    received = await client(httpx.Response(200, stream=Body(b"weights"), headers={"x-shoal-have": header})).read(
        PEER, CHUNK
    )
    assert (received.content, received.have) == (b"weights", None)


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (httpx.Response(404), PeerFailure.LACKS),
        (httpx.Response(401), PeerFailure.BROKEN),
        (httpx.Response(500), PeerFailure.BROKEN),
        (httpx.Response(302, headers={"location": "http://169.254.169.254/"}), PeerFailure.BROKEN),
        (httpx.ConnectError("refused"), PeerFailure.BROKEN),
        (httpx.ReadTimeout("silent"), PeerFailure.BROKEN),
        (httpx.RemoteProtocolError("no HTTP"), PeerFailure.BROKEN),
        (httpx.Response(200, stream=Body(bytes(1_000_001))), PeerFailure.CORRUPT),
    ],
)
async def test_each_failure_has_its_name(answer: httpx.Response | Exception, failure: PeerFailure) -> None:
    assert (await failure_of(answer)).failure is failure


@pytest.mark.parametrize("body", [b"", b"[]", b'{"chunks":12,"have":"????"}', b'{"x":' + b"[" * 1500, b"\xff"])
async def test_invalid_bitmap_is_a_failure(body: bytes) -> None:
    with pytest.raises(PeerFailed) as caught:
        await client(httpx.Response(200, stream=Body(body))).have(PEER)
    assert caught.value.failure is PeerFailure.BROKEN


@pytest.mark.parametrize(
    ("header", "after_s"),
    [("700", 0.7), (None, 0.3), ("soon", 0.3), ("-5", 0.3), ("99999999", 10.0), ("0", 0.0), ("٣", 0.3)],
)
async def test_a_busy_peer_says_when_within_reason(header: str | None, after_s: float) -> None:
    headers = {} if header is None else {"x-shoal-retry-after-ms": header.encode()}
    failed = await failure_of(httpx.Response(503, headers=headers))
    assert (failed.failure, failed.after_s) == (PeerFailure.BUSY, after_s)


async def test_a_peer_that_drips_is_given_up() -> None:
    clock = Clock()
    drip = Drip(clock)
    failed = await failure_of(httpx.Response(200, stream=drip), clock)
    assert failed.failure is PeerFailure.SLOW
    assert drip.sent < 10


class Silent(httpx.AsyncBaseTransport):
    """Transport that accepts the request and never finishes its headers."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_peer_whose_headers_never_end_is_given_up() -> None:
    peers = PeerClient(httpx.AsyncClient(transport=Silent()), DIGEST, 12, Bandwidth(), answer_within_s=0.05)
    for asking in (peers.read(PEER, CHUNK), peers.have(PEER)):
        async with asyncio.timeout(60):
            with pytest.raises(PeerFailed) as caught:
                await asking
        assert caught.value.failure is PeerFailure.BROKEN


async def test_a_bitmap_that_drips_is_given_up() -> None:
    class Slow(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                yield b" "
                await asyncio.sleep(0.02)

    peers = replace(client(httpx.Response(200, stream=Slow())), answer_within_s=0.2)
    async with asyncio.timeout(60):
        with pytest.raises(PeerFailed, match="TimeoutError"):
            await peers.have(PEER)


async def test_a_bitmap_that_unpacks_to_more_is_not_unpacked() -> None:
    bomb = httpx.Response(200, stream=Body(gzip.compress(bytes(10_000_000))), headers={"content-encoding": "gzip"})
    with pytest.raises(PeerFailed, match="compressed"):
        await client(bomb).have(PEER)


async def test_a_peers_bitmap_can_be_asked_for() -> None:
    assert await client(httpx.Response(200, json={"chunks": 12, "have": encode(0b11, 12)})).have(PEER) == 0b11


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, json={"chunks": 12}),
        httpx.Response(200, json={"chunks": 12, "have": "AAAAAAAA"}),
        httpx.Response(200, content=b" " * 20_000),
        httpx.Response(200, content=b"\xff"),
        httpx.Response(404),
    ],
)
async def test_an_odd_answer_about_the_bitmap_is_a_failure(answer: httpx.Response) -> None:
    with pytest.raises(PeerFailed):
        await client(answer).have(PEER)
