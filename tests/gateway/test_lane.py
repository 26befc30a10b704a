"""The fast lane as a protocol: bytes in, bytes out, each phase with its clock."""

import asyncio
from collections.abc import Callable

import pytest

from functions.gateway.guarded import GuardedHttpTools
from functions.gateway.limits import Limits
from tests.gateway import sse
from tests.gateway.client_rig import (
    CHAT_BODY,
    STREAM_BODY,
    Server,
    Wire,
    chunked,
    get,
    post,
    read_answers,
)
from tests.gateway.engine_rig import Play
from tests.gateway.test_exchange import END, HELLO, PUBLIC_END, PUBLIC_HELLO
from tests.gateway.world import BOT_V1, limits

Playing = Callable[..., Play]


async def answered(wire: Wire, stream: bool = False) -> None:
    """One hot request, answered."""
    wire >> post(STREAM_BODY if stream else CHAT_BODY)
    await wire.play.settle()
    engine = await wire.play.connects() if wire.play.dials else wire.play.engine
    if stream:
        engine.begins_stream()
        engine.streams(HELLO, END)
        engine.ends_stream()
    else:
        engine.answers(200, sse.whole(BOT_V1))


# the plain run


async def test_a_stream_is_one_chunked_answer(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p) >> post(STREAM_BODY, x_request_id="mine")
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    assert not wire.answer.complete
    engine.streams(END)
    engine.ends_stream()
    assert wire.answer.complete and wire.answer.status == 200
    assert wire.answer.body == PUBLIC_HELLO + PUBLIC_END
    assert wire.answer.headers["x-request-id"] == "mine"
    assert wire.answer.headers["content-type"] == "text/event-stream"
    assert "connection" not in wire.answer.headers and not wire.closed


async def test_a_whole_answer_has_its_length(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p)
    await answered(wire)
    assert wire.answer.body == sse.whole("acme/bot")
    assert wire.answer.headers["content-length"] == str(len(wire.answer.body))


async def test_keep_alive(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p)
    await answered(wire)
    await answered(wire, stream=True)
    await answered(wire)
    assert wire.statuses == [200, 200, 200] and wire.on_the_lane and not wire.closed


async def test_a_refusal_keeps_the_connection(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p) >> post(b"{}") >> post(b"[]")
    assert [answer.code for answer in wire.answers] == ["invalid_request", "invalid_json"]
    await answered(wire)
    assert wire.statuses == [400, 400, 200]


@pytest.mark.parametrize("size", [1, 2, 7, 64])
async def test_any_segmentation_is_the_same_request(play: Playing, size: int) -> None:
    p = play("r0")
    wire = Wire(p)
    data = post(STREAM_BODY)
    for start in range(0, len(data), size):
        wire >> data[start : start + size]
    engine = await p.connects()
    assert engine.requests[0]["messages"] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_a_chunked_body(play: Playing, size: int) -> None:
    p = play("r0")
    parts = [CHAT_BODY[start : start + size] for start in range(0, len(CHAT_BODY), size)]
    Wire(p) >> post(chunked(*parts), transfer_encoding="chunked")
    engine = await p.connects()
    assert engine.requests[0]["model"] == BOT_V1


async def test_connection_close_is_honoured(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p) >> post(connection="close")
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    assert wire.answer.headers["connection"] == "close" and wire.closed and not wire.cut


async def test_expect_100_continue(play: Playing) -> None:
    p = play("r0")
    head, body = post(expect="100-continue").split(b"\r\n\r\n")
    wire = Wire(p) >> head + b"\r\n\r\n"
    assert bytes(wire.transport.got) == b"HTTP/1.1 100 Continue\r\n\r\n"
    wire >> body
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    assert wire.statuses == [100, 200]


async def test_expect_100_continue_from_a_stranger(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p) >> post(b"", key=None, length=100, expect="100-continue")
    assert wire.statuses == [401] and wire.answer.headers["connection"] == "close"


async def test_an_empty_line_between_requests_is_nothing(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p) >> post() + b"\r\n"
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    await answered(wire)
    assert wire.statuses == [200, 200]


# hand-over


NOT_HOT = {
    "GET": get("/healthz"),
    "GET of a hot path": get("/v1/chat/completions"),
    "OPTIONS of a hot path": post(b"", method="OPTIONS"),
    "HEAD of a hot path": post(b"", method="HEAD"),
    "PUT of a hot path": post(method="PUT"),
    "a query": post(path="/v1/chat/completions?x=1"),
    "a trailing slash": post(path="/v1/chat/completions/"),
    "mixed case": post(path="/V1/chat/completions"),
    "percent-encoded": post(path="/v1/chat%2Fcompletions"),
    "absolute form": post(path="http://shoal.test/v1/chat/completions"),
    "HTTP/1.0": post(version="1.0"),
    "another route": post(path="/v1/tokenize"),
    "a websocket": get("/v1/chat/completions", connection="upgrade", upgrade="websocket"),
}


class Recorder(GuardedHttpTools):
    """uvicorn's protocol, remembering what it was given."""

    heard = b""

    def data_received(self, data: bytes) -> None:
        self.heard += data
        super().data_received(data)


@pytest.mark.parametrize("size", [None, 1, 10])
@pytest.mark.parametrize("name", NOT_HOT)
async def test_what_is_not_hot_moves_to_uvicorn_with_the_same_bytes(
    play: Playing, monkeypatch: pytest.MonkeyPatch, name: str, size: int | None
) -> None:
    monkeypatch.setattr("functions.gateway.lane.GuardedHttpTools", Recorder)
    p = play("r0")
    wire = Wire(p)
    data = NOT_HOT[name]
    for start in range(0, len(data), size or len(data)):
        wire >> data[start : start + (size or len(data))]
    assert not wire.on_the_lane
    assert wire.transport.protocol.heard == data
    assert len(p.gateway.watched) == 1 and len(wire.server.state.connections) == 1
    await p.settle()
    wire.leaves()
    await asyncio.sleep(0.01)
    assert not p.gateway.watched and not wire.server.state.connections


async def test_a_connection_may_be_hot_first_and_move_later(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p)
    await answered(wire)
    wire >> get("/healthz")
    await p.settle()
    assert wire.statuses == [200, 200] and not wire.on_the_lane
    wire.leaves()


# pipelining


async def test_a_request_before_its_turn_is_not_answered(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p) >> post(STREAM_BODY) + post() + get()
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO, END)
    engine.ends_stream()
    assert len(wire.answers) == 1 and wire.answer.complete
    wire.after(2.1)
    assert wire.closed and not wire.cut
    assert len(engine.requests) == 1


async def test_pipelined_after_a_refusal(play: Playing) -> None:
    wire = Wire(play("r0")) >> post(b"{}") + post()
    assert wire.statuses == [400] and wire.closed


async def test_garbage_while_an_answer_runs_does_not_get_into_it(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p) >> post(STREAM_BODY)
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    wire >> b"\x00\x01garbage\r\n\r\n" >> b"x" * 100_000
    engine.streams(END)
    engine.ends_stream()
    assert wire.answer.body == PUBLIC_HELLO + PUBLIC_END
    wire.after(2.1)
    assert wire.closed and len(wire.answers) == 1


# bounds


async def test_a_head_over_its_bound_in_one_segment(play: Playing) -> None:
    wire = Wire(play("r0")) >> post(x_big="x" * 17_000)
    assert (wire.answer.status, wire.answer.code) == (431, "headers_too_large")


async def test_a_head_over_its_bound_byte_by_byte(play: Playing) -> None:
    wire = Wire(play("r0"))
    for byte in b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 17_000:
        wire >> bytes([byte])
    assert (wire.answer.status, wire.answer.code) == (431, "headers_too_large")


async def test_a_url_over_its_bound(play: Playing) -> None:
    wire = Wire(play("r0")) >> post(path="/" + "x" * 17_000)
    assert wire.answer.status == 431


async def test_too_many_headers(play: Playing) -> None:
    wire = Wire(play("r0")) >> post(**{f"x{i}": "y" for i in range(70)})
    assert (wire.answer.status, wire.answer.code) == (431, "headers_too_large")


async def test_an_announced_body_over_its_bound(play: Playing) -> None:
    wire = Wire(play("r0")) >> post(b"", length=4 * 1024 * 1024 + 1)
    assert (wire.answer.status, wire.answer.code) == (413, "body_too_large")


async def test_a_chunked_body_over_its_bound(play: Playing) -> None:
    wire = Wire(play("r0", limits=limits(body_bytes=1000)))
    wire >> post(chunked(b"x" * 1001), transfer_encoding="chunked")
    assert (wire.answer.status, wire.answer.code) == (413, "body_too_large")


@pytest.mark.parametrize("chunked_body", [True, False])
async def test_a_strangers_large_body_is_not_read(play: Playing, chunked_body: bool) -> None:
    request = post(b"", key=None, transfer_encoding="chunked") if chunked_body else post(b"", key=None, length=100_000)
    wire = Wire(play("r0")) >> request
    assert (wire.answer.status, wire.answer.code) == (401, "invalid_api_key")
    for _ in range(100):
        wire >> b"x" * 65_536
    assert len(wire.lane._body) == 0, "what follows is dropped"
    assert not wire.closed, "the client may still be sending: closing now would reset the answer away"
    wire.after(2.1)
    assert wire.closed


async def test_tiny_chunks_cost_no_more_than_their_bytes(play: Playing) -> None:
    wire = Wire(play("r0")) >> post(b"", transfer_encoding="chunked")
    for _ in range(100):
        wire >> b"1\r\n{\r\n" * 100
    assert isinstance(wire.lane._body, bytearray) and len(wire.lane._body) == 10_000


async def test_the_last_connection(play: Playing) -> None:
    p = play("r0", limits=limits(connections=1))
    server = Server(p)
    first, second = Wire(p, server), Wire(p, server)
    assert second.statuses == [503] and second.closed and second.answer.headers["connection"] == "close"
    second >> post()
    second.leaves()
    await answered(first)
    assert first.statuses == [200]
    first.leaves()
    assert not Wire(p, server).closed


@pytest.mark.parametrize(
    "data",
    [
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        post(b"{}", content_length="2"),  # twice
        post(b"abcd", transfer_encoding="chunked", content_length="4"),
        b"POST /v1/chat/completions HTTP/1.1\nHost: x\n\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost : x\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\x00b\r\n\r\n",
        post(b"zz\r\n", transfer_encoding="chunked"),
    ],
)
async def test_what_is_not_http_is_refused_and_the_connection_ends(play: Playing, data: bytes) -> None:
    wire = Wire(play("r0")) >> data
    assert (wire.answer.status, wire.answer.code) == (400, "invalid_http")
    assert wire.answer.headers["connection"] == "close"
    wire.after(2.1)
    assert wire.closed


async def test_an_upgrade_is_not_offered(play: Playing) -> None:
    """The parser ends such a request before its body, so it must not be taken for a request without one."""
    wire = Wire(play("r0")) >> post(connection="upgrade", upgrade="h2c")
    assert (wire.answer.status, wire.answer.code) == (400, "upgrade_not_offered")


# clocks


async def test_a_connection_that_says_nothing(play: Playing) -> None:
    wire = Wire(play("r0"))
    wire.after(9.9)
    assert not wire.closed
    wire.after(0.2)
    assert wire.closed and wire.answers == []


async def test_a_head_that_does_not_end(play: Playing) -> None:
    wire = Wire(play("r0"))
    wire.after(9.0)
    wire >> b"POST "
    for _ in range(9):
        wire.after(1.0)
        wire >> b"x"
    assert not wire.closed and not wire.answers
    wire.after(1.1)
    assert (wire.answer.status, wire.answer.code) == (408, "request_timeout")


async def test_a_body_that_does_not_end(play: Playing) -> None:
    wire = Wire(play("r0")) >> post(b"{", length=1000)
    for _ in range(29):
        wire.after(1.0)
        wire >> b" "
    assert not wire.answers
    wire.after(1.1)
    assert (wire.answer.status, wire.answer.code) == (408, "request_timeout")


async def test_an_idle_connection(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p)
    await answered(wire)
    wire.after(74.9)
    assert not wire.closed
    wire.after(0.2)
    assert wire.closed and wire.statuses == [200]


async def test_an_answer_under_way_has_its_own_clocks(play: Playing) -> None:
    p = play("r0", limits=limits(first_byte_s=200.0))
    wire = Wire(p) >> post(STREAM_BODY)
    await p.connects()
    wire.after(100.0)
    assert not wire.closed and not wire.answers


async def test_a_close_that_nobody_reads_is_forced(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p) >> post(connection="close")
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    wire.after(29.9)
    assert wire.closed and not wire.cut
    wire.after(0.2)
    assert wire.cut


# clients that leave, clients that do not read


async def test_a_client_that_leaves_takes_its_request_along(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p) >> post(STREAM_BODY)
    engine = await p.connects()
    wire.leaves()
    assert engine.dropped and p.quiet() and not p.gateway.watched


async def test_a_half_close_is_a_disconnect(play: Playing) -> None:
    assert not Wire(play("r0")).lane.eof_received()


async def test_a_client_that_leaves_in_its_head_or_body(play: Playing) -> None:
    p = play("r0")
    for data in (b"", b"POST /v1", post(b"{", length=50)):
        wire = Wire(p) >> data
        wire.leaves()
    assert not p.gateway.watched and p.quiet()


async def test_a_slow_reader_pauses_the_engine(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p) >> post(STREAM_BODY)
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    wire.stops_reading()
    assert engine.paused
    wire.reads_on()
    assert not engine.paused
    wire.stops_reading()
    wire.after(30.1)
    assert wire.cut and engine.dropped


@pytest.mark.parametrize("stream", [True, False])
async def test_no_new_request_before_the_last_answer_is_read(play: Playing, stream: bool) -> None:
    """Else a client that asks and never reads could have any number of answers wait in memory."""
    p = play("r0")
    wire = Wire(p) >> post(STREAM_BODY if stream else CHAT_BODY)
    engine = await p.connects()
    wire.stops_reading()
    if stream:
        engine.begins_stream()
        engine.streams(HELLO, END)
        engine.ends_stream()
    else:
        engine.answers(200, sse.whole(BOT_V1))
    assert wire.answer.complete and wire.transport.reading_paused
    wire.reads_on()
    assert not wire.transport.reading_paused
    await answered(wire)
    assert wire.statuses == [200, 200]


async def test_an_answer_that_fills_the_pipe_after_its_end_counts_too(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p)
    await answered(wire)
    wire.stops_reading()  # uvloop may notice only when it flushes, a moment later
    assert wire.transport.reading_paused
    wire.after(30.1)
    assert wire.cut


async def test_a_client_that_never_reads_its_whole_answer_is_cut_off(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p) >> post()
    engine = await p.connects()
    wire.stops_reading()
    engine.answers(200, sse.whole(BOT_V1))
    wire.after(29.9)
    assert not wire.cut
    wire.after(0.2)
    assert wire.cut


# drain


async def test_shutdown_while_idle_leaves_time_for_a_request_on_its_way(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p)
    wire.lane.shutdown()
    wire.after(0.9)
    assert not wire.closed
    await answered(wire)
    assert wire.answer.headers["connection"] == "close" and wire.closed


async def test_shutdown_while_idle(play: Playing) -> None:
    wire = Wire(play("r0"))
    wire.lane.shutdown()
    wire.after(1.1)
    assert wire.closed and not wire.answers


@pytest.mark.parametrize("cut_at", [10, 200, len(post()) - 3])
async def test_shutdown_while_a_request_arrives(play: Playing, cut_at: int) -> None:
    p = play("r0")
    data = post()
    wire = Wire(p) >> data[:cut_at]
    wire.lane.shutdown()
    wire.after(2.0)
    wire >> data[cut_at:]
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    assert wire.answer.status == 200 and wire.answer.headers["connection"] == "close" and wire.closed


async def test_shutdown_while_an_answer_streams(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p) >> post(STREAM_BODY)
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    wire.lane.shutdown()
    wire.after(5.0)
    assert not wire.closed
    engine.streams(END)
    engine.ends_stream()
    assert wire.answer.complete and wire.closed and not wire.cut


async def test_shutdown_while_an_answer_waits_to_be_read(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p) >> post()
    engine = await p.connects()
    wire.stops_reading()
    engine.answers(200, sse.whole(BOT_V1))
    wire.lane.shutdown()
    wire.reads_on()
    assert wire.closed and not wire.cut


async def test_shutdown_while_lingering_or_closing(play: Playing) -> None:
    wire = Wire(play("r0")) >> post(b"", length=10**9)
    wire.lane.shutdown()
    wire.after(2.1)
    assert wire.closed
    wire.lane.shutdown()
    wire.after(30.1)
    assert wire.cut


async def test_a_connection_made_while_draining_serves_one_request(play: Playing) -> None:
    p = play("r0")
    p.gateway.draining = True
    wire = Wire(p)
    await answered(wire)
    assert wire.answer.headers["connection"] == "close" and wire.closed


async def test_a_drained_connection_that_is_handed_over_closes_after_its_answer(play: Playing) -> None:
    p = play("r0")
    p.gateway.draining = True
    wire = Wire(p) >> get("/healthz")
    await p.settle()
    assert wire.answer.headers["connection"] == "close" and wire.closed
    wire.leaves()


async def test_the_drains_end_ends_what_is_open(play: Playing) -> None:
    p = play("r0", "r1")
    server = Server(p)
    begun = Wire(p, server) >> post(STREAM_BODY)
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    waiting = Wire(p, server) >> post()
    begun.lane.shutdown()
    waiting.lane.shutdown()
    p.gateway.cut_short()
    assert begun.closed and b'"code":"restarting"' in begun.answer.body
    assert (waiting.answer.status, waiting.answer.code) == (503, "restarting")
    assert waiting.answer.headers["retry-after"] == "1"
    assert p.quiet()


# before there is anything to serve


async def test_without_a_snapshot(play: Playing) -> None:
    p = play("r0")
    p.gateway.catalogue = None
    wire = Wire(p) >> post()
    assert (wire.answer.status, wire.answer.code) == (503, "not_ready")
    assert wire.answer.headers["retry-after"]


async def test_a_failure_of_ours_is_a_500_in_shape_and_says_nothing_of_it(play: Playing) -> None:
    p = play("r0")
    p.gateway.wall_clock = lambda: 1 / 0  # type: ignore[assignment]
    wire = Wire(p) >> post()
    assert (wire.answer.status, wire.answer.code) == (500, "internal_error")
    assert "ZeroDivision" not in wire.answer.body.decode()


async def test_an_idle_connection_holds_nothing_of_its_last_request(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p)
    await answered(wire)
    assert wire.lane._headers == [] and not wire.lane._body and wire.lane._exchange is None
    assert not hasattr(wire.lane, "__dict__")


def test_answers_are_read_strictly() -> None:
    """The reader of these tests notices a second answer and a header given twice."""
    two = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nHTTP/1.1 408 X\r\ncontent-length: 0\r\n\r\n"
    assert [answer.status for answer in read_answers(two)] == [200, 408]
    with pytest.raises(Exception, match="callback"):
        read_answers(b"HTTP/1.1 200 OK\r\na: 1\r\nA: 2\r\n\r\n")


def test_limits_leave_room_below_the_engines_keep_alive() -> None:
    assert Limits().upstream_keep_alive_s < 5.0
