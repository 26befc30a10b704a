"""Upstream: an engine's bytes become one head, one body and one end, for any segmentation."""

import asyncio
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import ReplicaId
from functions.decisions.routing.retry import AttemptFailure
from functions.gateway.request.upstream import UpstreamConnection, UpstreamPool
from tests.gateway.engine_rig import STREAM_HEAD, PlayedTransport
from tests.gateway.test_relay import cut, cuts

PIECE = b"x" * 16_000
PIECES = 500
WITHIN_S = 60


class Reader:
    """Records the sizes of the pieces."""

    def __init__(self) -> None:
        self.heads: list[tuple[int, bytes]] = []
        self.pieces: list[bytes] = []
        self.ends: list[AttemptFailure | None] = []
        self.ended = asyncio.Event()

    def on_head(self, status: int, content_type: bytes) -> None:
        assert not self.pieces and not self.ends
        self.heads.append((status, content_type))

    def on_body(self, data: bytes) -> None:
        assert self.heads and not self.ends
        self.pieces.append(data)

    def on_end(self) -> None:
        self.ends.append(None)
        self.ended.set()

    def on_failure(self, failure: AttemptFailure, detail: str) -> None:
        self.ends.append(failure)
        self.ended.set()


async def _flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(STREAM_HEAD)
    for _ in range(PIECES):
        writer.write(b"%x\r\n%b\r\n" % (len(PIECE), PIECE))
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    writer.close()


BODY = b"data: {}\n\n" * 3
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
FRAMINGS = {
    "chunks": b"transfer-encoding: chunked\r\n\r\n5\r\n%b\r\n18\r\n%b\r\n1\r\n%b\r\n0\r\n\r\n"
    % (BODY[:5], BODY[5:29], BODY[29:]),
    "extensions and trailers": (
        b"transfer-encoding: chunked\r\n\r\n1e;a=b\r\n%b\r\n0\r\ncontent-type: text/plain\r\n\r\n" % BODY
    ),
    "a length": b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY),
}
BEFORE = {"nothing": b"", "1xx": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"}
AFTER = {
    "nothing": b"",
    "an answer": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno",
    "garbage": b"\0\1\2",
    "HTTP": b"HTTP",
}


def connected() -> tuple[UpstreamPool, UpstreamConnection, PlayedTransport]:
    pool, transport = UpstreamPool(lambda: 0.0, idle_per_replica=1, keep_alive_s=4.0), PlayedTransport()
    connection = UpstreamConnection(pool, ReplicaId("r0"))
    connection.connection_made(transport)
    return pool, connection, transport


def received(connection: UpstreamConnection, transport: PlayedTransport, reads: list[bytes]) -> Reader:
    answer = Reader()
    connection.send(answer, b"GET / HTTP/1.1\r\n\r\n")
    for read in reads:
        if read and not transport.closing:
            connection.data_received(read)
    return answer


@given(cuts, st.sampled_from(sorted(BEFORE)), st.sampled_from(sorted(FRAMINGS)), st.sampled_from(sorted(AFTER)))
def test_an_answer_cut_anywhere_is_one_answer(at: list[int], before: str, framing: str, after: str) -> None:
    pool, connection, transport = connected()
    answer_bytes = BEFORE[before] + HEAD + FRAMINGS[framing] + AFTER[after]
    answer = received(connection, transport, cut(answer_bytes, at))
    assert answer.heads == [(200, b"text/event-stream")]
    assert b"".join(answer.pieces) == BODY and answer.ends == [None]
    assert transport.closing == (after != "nothing"), "whoever says more than was asked is not trusted with the next"
    assert (pool.pop_idle(ReplicaId("r0")) is connection) == (after == "nothing")


@given(cuts, st.integers(0, 60))
def test_half_an_answer_fails_with_reset(at: list[int], missing: int) -> None:
    answer_bytes = HEAD + FRAMINGS["chunks"]
    pool, connection, transport = connected()
    answer = received(connection, transport, cut(answer_bytes[: -1 - missing], at))
    assert answer.ends == []
    transport.closing = True
    connection.connection_lost(None)
    assert answer.ends == [AttemptFailure.RESET]
    assert pool.pop_idle(ReplicaId("r0")) is None


@pytest.mark.parametrize(
    "answer_bytes",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
    ],
)
def test_invalid_answer_fails_once_and_ends_the_connection(answer_bytes: bytes) -> None:
    for size in (1, len(answer_bytes)):
        _, connection, transport = connected()
        answer = received(
            connection, transport, [answer_bytes[start : start + size] for start in range(0, len(answer_bytes), size)]
        )
        assert answer.ends == [AttemptFailure.BAD_ANSWER] and transport.aborted


def test_abort_at_the_head_drops_the_body() -> None:
    """The owner drops the connection at the head; the rest of the same read has no owner."""
    _, connection, transport = connected()

    class Picky(Reader):
        def on_head(self, status: int, content_type: bytes) -> None:
            connection.abort()

    answer = Picky()
    connection.send(answer, b"GET / HTTP/1.1\r\n\r\n")
    connection.data_received(HEAD + FRAMINGS["chunks"])
    assert transport.aborted and answer.pieces == [] and answer.ends == []


@pytest.mark.servers
async def test_flooding_engine_is_read_in_small_pieces() -> None:
    """Each piece is copied several times on its way and stays in memory if the client does not read."""
    pool = UpstreamPool(monotonic, idle_per_replica=1, keep_alive_s=4.0)
    async with await asyncio.start_server(_flood, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connection = await pool.dial(ReplicaId("r0"), "127.0.0.1", port, WITHIN_S)
        answer = Reader()
        connection.send(answer, b"GET / HTTP/1.1\r\n\r\n")
        await asyncio.wait_for(answer.ended.wait(), WITHIN_S)
    pool.close()
    assert b"".join(answer.pieces) == PIECES * PIECE
    assert max(map(len, answer.pieces)) <= 128 * 1024


ENDLESS = {
    "a header": (b"HTTP/1.1 200 OK\r\nx-a: ", b"a" * 8192),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"x-a: b\r\n" * 1024),
    "1xx": (b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 200),
    "a trailer": (HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nx-a: ", b"a" * 8192),
    "a chunk's extension": (HEAD + b"transfer-encoding: chunked\r\n\r\n1;", b"a" * 8192),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_size_of_head_and_framing_is_bounded(what: str) -> None:
    """The parser keeps a header until it ends; an engine that sent an endless one used up all memory."""
    _, connection, transport = connected()
    begins, goes_on = ENDLESS[what]
    answer = received(connection, transport, [begins] + [goes_on] * 100)
    assert answer.ends == [AttemptFailure.BAD_ANSWER] and transport.aborted
