"""The fast lane as a protocol: bytes in, bytes out, each phase with its timeout."""

import asyncio
from dataclasses import replace

import pytest

from functions.gateway.limits import Limits
from functions.http.guarded import GuardedHttp
from tests.gateway import sse
from tests.gateway.client_rig import (
    CHAT_BODY,
    STREAM_BODY,
    Connection,
    Server,
    chunked,
    get,
    post,
    read_answers,
)
from tests.gateway.hello import END, HELLO, PUBLIC_END, PUBLIC_HELLO, Playing
from tests.gateway.lane_steps import answered
from tests.gateway.rig import BOT_V1, limits

# ordinary requests


async def test_a_stream_is_one_chunked_answer(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p) >> post(STREAM_BODY, x_request_id="mine")
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    assert not connection.answer.complete
    engine.streams(END)
    engine.ends_stream()
    assert connection.answer.complete and connection.answer.status == 200
    assert connection.answer.body == PUBLIC_HELLO + PUBLIC_END
    assert connection.answer.headers["x-request-id"] == "mine"
    assert connection.answer.headers["content-type"] == "text/event-stream"
    assert "connection" not in connection.answer.headers and not connection.closed


async def test_a_whole_answer_has_its_length(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p)
    await answered(connection)
    assert connection.answer.body == sse.whole("acme/bot")
    assert connection.answer.headers["content-length"] == str(len(connection.answer.body))


async def test_keep_alive(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p)
    await answered(connection)
    await answered(connection, stream=True)
    await answered(connection)
    assert connection.statuses == [200, 200, 200] and connection.on_the_lane and not connection.closed


async def test_a_refusal_keeps_the_connection(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p) >> post(b"{}") >> post(b"[]")
    assert [answer.code for answer in connection.answers] == ["invalid_request", "invalid_json"]
    await answered(connection)
    assert connection.statuses == [400, 400, 200]


@pytest.mark.parametrize("size", [1, 2, 7, 64])
async def test_request_is_the_same_for_any_segmentation(play: Playing, size: int) -> None:
    p = play("r0")
    connection = Connection(p)
    data = post(STREAM_BODY)
    for start in range(0, len(data), size):
        connection >> data[start : start + size]
    engine = await p.connects()
    assert engine.requests[0]["messages"] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_a_chunked_body(play: Playing, size: int) -> None:
    p = play("r0")
    parts = [CHAT_BODY[start : start + size] for start in range(0, len(CHAT_BODY), size)]
    Connection(p) >> post(chunked(*parts), transfer_encoding="chunked")
    engine = await p.connects()
    assert engine.requests[0]["model"] == BOT_V1


@pytest.mark.parametrize("moved", [False, True], ids=["lane", "plain"])
@pytest.mark.parametrize("trailer", [b"X-Shoal-Class: batch", b"X-Request-Id: forged", b"X-Shoal-Class: no such"])
async def test_trailers_are_not_headers(play: Playing, trailer: bytes, moved: bool) -> None:
    """A proxy that checks headers before the gateway has not seen what follows the body."""
    p = play("r0")
    connection = Connection(p)
    if moved:
        connection >> get("/healthz")
        await p.settle()
    connection >> post(
        chunked(CHAT_BODY)[:-2] + trailer + b"\r\n\r\n", transfer_encoding="chunked", x_request_id="mine"
    )
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    await p.settle()
    assert connection.answers[-1].status == 200
    assert connection.answers[-1].headers["x-request-id"] == "mine"
    assert p.gateway.services.traces.recent[-1].row().class_ == "interactive"
    connection.leaves()


async def test_connection_close_is_honoured(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p) >> post(connection="close")
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    assert connection.answer.headers["connection"] == "close" and connection.closed and not connection.cut


async def test_expect_100_continue(play: Playing) -> None:
    p = play("r0")
    head, body = post(expect="100-continue").split(b"\r\n\r\n")
    connection = Connection(p) >> head + b"\r\n\r\n"
    assert bytes(connection.transport.got) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection >> body
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    assert connection.statuses == [100, 200]


async def test_expect_100_continue_without_a_key_gets_401(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p) >> post(b"", key=None, length=100, expect="100-continue")
    assert connection.statuses == [401] and connection.answer.headers["connection"] == "close"


async def test_empty_line_between_requests_is_ignored(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p) >> post() + b"\r\n"
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    await answered(connection)
    assert connection.statuses == [200, 200]


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


class Recorder(GuardedHttp):
    """uvicorn's protocol, which records what it received."""

    heard = b""

    def data_received(self, data: bytes) -> None:
        self.heard += data
        super().data_received(data)


@pytest.mark.parametrize("size", [None, 1, 10])
@pytest.mark.parametrize("name", NOT_HOT)
async def test_other_routes_move_to_uvicorn_with_the_same_bytes(
    play: Playing, monkeypatch: pytest.MonkeyPatch, name: str, size: int | None
) -> None:
    monkeypatch.setattr("functions.gateway.http.lane.GuardedHttp", Recorder)
    p = play("r0")
    connection = Connection(p)
    data = NOT_HOT[name]
    for start in range(0, len(data), size or len(data)):
        connection >> data[start : start + (size or len(data))]
    assert not connection.on_the_lane
    assert connection.transport.protocol.heard == data
    assert len(p.gateway.services.connections) == 1 and len(connection.server.state.connections) == 1
    await p.settle()
    connection.leaves()
    await asyncio.sleep(0.01)
    assert not p.gateway.services.connections and not connection.server.state.connections


async def test_connection_may_move_to_uvicorn_after_a_hot_request(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p)
    await answered(connection)
    connection >> get("/healthz")
    await p.settle()
    assert connection.statuses == [200, 200] and not connection.on_the_lane
    connection.leaves()


# pipelining


async def test_pipelined_request_is_not_answered(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p) >> post(STREAM_BODY) + post() + get()
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO, END)
    engine.ends_stream()
    assert len(connection.answers) == 1 and connection.answer.complete
    connection.after(2.1)
    assert connection.closed and not connection.cut
    assert len(engine.requests) == 1


async def test_request_pipelined_after_a_rejection_is_not_answered(play: Playing) -> None:
    connection = Connection(play("r0")) >> post(b"{}") + post()
    assert connection.statuses == [400] and connection.closed


async def test_garbage_during_an_answer_does_not_corrupt_it(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p) >> post(STREAM_BODY)
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    connection >> b"\x00\x01garbage\r\n\r\n" >> b"x" * 100_000
    engine.streams(END)
    engine.ends_stream()
    assert connection.answer.body == PUBLIC_HELLO + PUBLIC_END
    connection.after(2.1)
    assert connection.closed and len(connection.answers) == 1


async def test_a_request_while_a_stream_runs_must_be_sent_again(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p) >> post(STREAM_BODY)
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    connection >> post()
    engine.streams(END)
    engine.ends_stream()
    assert connection.answer.body == PUBLIC_HELLO + PUBLIC_END
    connection.after(2.1)
    assert connection.closed and not connection.cut and len(engine.requests) == 1


async def test_empty_line_during_a_stream_is_ignored(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p) >> post(STREAM_BODY)
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    connection >> b"\r\n"
    engine.streams(END)
    engine.ends_stream()
    await answered(connection)
    assert connection.statuses == [200, 200] and not connection.closed


async def test_connection_may_move_to_uvicorn_after_a_stream(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p)
    await answered(connection, stream=True)
    connection >> get("/healthz")
    await p.settle()
    assert connection.statuses == [200, 200] and not connection.on_the_lane
    connection.leaves()


# bounds


async def test_a_head_over_its_bound_in_one_segment(play: Playing) -> None:
    connection = Connection(play("r0")) >> post(x_big="x" * 17_000)
    assert (connection.answer.status, connection.answer.code) == (431, "headers_too_large")


async def test_a_head_over_its_bound_byte_by_byte(play: Playing) -> None:
    connection = Connection(play("r0"))
    for byte in b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 17_000:
        connection >> bytes([byte])
    assert (connection.answer.status, connection.answer.code) == (431, "headers_too_large")


async def test_a_url_over_its_bound(play: Playing) -> None:
    connection = Connection(play("r0")) >> post(path="/" + "x" * 17_000)
    assert connection.answer.status == 431


async def test_too_many_headers(play: Playing) -> None:
    connection = Connection(play("r0")) >> post(**{f"x{i}": "y" for i in range(70)})
    assert (connection.answer.status, connection.answer.code) == (431, "headers_too_large")


async def test_an_announced_body_over_its_bound(play: Playing) -> None:
    connection = Connection(play("r0")) >> post(b"", length=4 * 1024 * 1024 + 1)
    assert (connection.answer.status, connection.answer.code) == (413, "body_too_large")


async def test_a_chunked_body_over_its_bound(play: Playing) -> None:
    connection = Connection(play("r0", limits=limits(body_bytes=1000)))
    connection >> post(chunked(b"x" * 1001), transfer_encoding="chunked")
    assert (connection.answer.status, connection.answer.code) == (413, "body_too_large")


@pytest.mark.parametrize("chunked_body", [True, False])
async def test_large_body_without_a_key_is_not_read(play: Playing, chunked_body: bool) -> None:
    request = post(b"", key=None, transfer_encoding="chunked") if chunked_body else post(b"", key=None, length=100_000)
    connection = Connection(play("r0")) >> request
    assert (connection.answer.status, connection.answer.code) == (401, "invalid_api_key")
    for _ in range(100):
        connection >> b"x" * 65_536
    assert len(connection.lane._body) == 0, "what follows is dropped"
    assert not connection.closed, "the client may still be sending: closing now would reset the answer away"
    connection.after(2.1)
    assert connection.closed


async def test_tiny_chunks_cost_no_more_than_their_bytes(play: Playing) -> None:
    connection = Connection(play("r0")) >> post(b"", transfer_encoding="chunked")
    for _ in range(100):
        connection >> b"1\r\n{\r\n" * 100
    assert isinstance(connection.lane._body, bytearray) and len(connection.lane._body) == 10_000


async def test_connection_over_the_limit_replaces_one_without_a_key(play: Playing) -> None:
    p = play("r0", limits=limits(connections=1))
    server = Server(p)
    first, second = Connection(p, server), Connection(p, server)
    assert first.cut, "a stranger gives way"
    second >> post()
    third = Connection(p, server)
    assert third.statuses == [503] and third.closed and third.answer.headers["connection"] == "close"
    third >> post()
    third.leaves()
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    assert second.statuses == [200]
    second.leaves()
    assert not Connection(p, server).closed


@pytest.mark.parametrize(
    "data",
    [
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        post(b"{}", content_length="2"),  # the header twice
        post(b"abcd", transfer_encoding="chunked", content_length="4"),
        b"POST /v1/chat/completions HTTP/1.1\nHost: x\n\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost : x\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\x00b\r\n\r\n",
        post(b"zz\r\n", transfer_encoding="chunked"),
    ],
)
async def test_invalid_http_is_refused_and_ends_the_connection(play: Playing, data: bytes) -> None:
    connection = Connection(play("r0")) >> data
    assert (connection.answer.status, connection.answer.code) == (400, "invalid_http")
    assert connection.answer.headers["connection"] == "close"
    connection.after(2.1)
    assert connection.closed


@pytest.mark.parametrize("size", [None, 1, 150])
@pytest.mark.parametrize("moved", [False, True])
async def test_upgrade_is_ignored_and_its_body_is_not_a_request(play: Playing, size: int | None, moved: bool) -> None:
    """RFC 9110, 7.8; the parser ends such a request before its body and would read the body as the next request."""
    p = play("r0")
    connection = Connection(p) >> (get("/healthz") if moved else b"")
    await p.settle()
    inner = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    data = post(CHAT_BODY + b" " + inner, connection="Upgrade, HTTP2-Settings", upgrade="h2c", http2_settings="AAMA")
    for start in range(0, len(data), size or len(data)):
        connection >> data[start : start + (size or len(data))]
    await p.settle()
    assert connection.answers[-1].code == "invalid_json", "the whole body was read as one"
    connection >> post(connection="upgrade", upgrade="websocket")
    await p.settle()
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    await p.settle()
    assert connection.statuses == [*([200] if moved else []), 400, 200]
    connection.leaves()


# before there is anything to serve


async def test_request_without_a_snapshot_gets_503(play: Playing) -> None:
    p = play("r0")
    p.gateway.services.state.catalogue = None
    connection = Connection(p) >> post()
    assert (connection.answer.status, connection.answer.code) == (503, "not_ready")
    assert connection.answer.headers["retry-after"]


async def test_internal_failure_is_a_500_without_details(play: Playing) -> None:
    p = play("r0")
    p.gateway.services = replace(p.gateway.services, wall_clock=lambda: 1 / 0)  # type: ignore[arg-type]
    connection = Connection(p) >> post()
    assert (connection.answer.status, connection.answer.code) == (500, "internal_error")
    assert "ZeroDivision" not in connection.answer.body.decode()


async def test_idle_connection_holds_no_request_data(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p)
    await answered(connection)
    assert connection.lane._headers == [] and not connection.lane._body and connection.lane._exchange is None
    assert not hasattr(connection.lane, "__dict__")


def test_answers_are_read_strictly() -> None:
    """The reader of these tests detects a second answer and a repeated header."""
    two = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nHTTP/1.1 408 X\r\ncontent-length: 0\r\n\r\n"
    assert [answer.status for answer in read_answers(two)] == [200, 408]
    with pytest.raises(Exception, match="callback"):
        read_answers(b"HTTP/1.1 200 OK\r\na: 1\r\nA: 2\r\n\r\n")


def test_limits_leave_room_below_the_engines_keep_alive() -> None:
    assert Limits().upstream_keep_alive_s < 5.0
