"""uvicorn's protocol with the gateway's timeouts: nothing waits for ever, and no answer is mixed into another."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.gateway import sse
from tests.gateway.client_rig import CHAT_BODY, STREAM_BODY, Connection, get, post
from tests.gateway.engine_rig import Engine, Play
from tests.gateway.hello import END, HELLO, PUBLIC_END, PUBLIC_HELLO
from tests.gateway.lane_steps import answered
from tests.gateway.rig import ACME_KEY, BOT_V1

Playing = Callable[..., Play]


async def moved(p: Play) -> Connection:
    """Return a connection that uvicorn serves, with no request under way."""
    connection = Connection(p) >> get("/healthz")
    await p.settle()
    assert connection.statuses == [200] and not connection.on_the_lane
    connection.transport.got.clear()
    return connection


async def engine_after(p: Play, connection: Connection, data: bytes) -> Engine:
    connection >> data
    await p.settle()
    return await p.connects()


async def finished(p: Play, engine: Engine) -> None:
    engine.begins_stream()
    engine.streams(HELLO, END)
    engine.ends_stream()
    await p.settle()


async def test_a_hot_request_on_the_plain_side(play: Playing) -> None:
    p = play("r0")
    connection = await moved(p)
    await finished(p, await engine_after(p, connection, post(STREAM_BODY)))
    assert connection.answer.body == PUBLIC_HELLO + PUBLIC_END
    connection.leaves()


async def test_unfinished_head_times_out(play: Playing) -> None:
    p = play("r0")
    connection = await moved(p) >> b"POST /v1/chat"
    connection.after(9.9)
    assert not connection.answers
    connection.after(0.2)
    assert (connection.answer.status, connection.answer.code) == (408, "request_timeout")
    assert connection.closed
    connection.leaves()


async def test_unfinished_body_times_out(play: Playing) -> None:
    p = play("r0")
    connection = await moved(p) >> post(b"{", length=100)
    await p.settle()
    connection.after(30.1)
    assert (connection.answer.status, connection.answer.code) == (408, "request_timeout")
    assert connection.closed
    connection.leaves()
    await p.settle()
    assert connection.statuses == [408]


async def test_late_body_of_an_answered_request_gets_no_second_answer(play: Playing) -> None:
    p = play("r0")
    connection = await moved(p) >> post(b"{", length=100, key=None)
    await p.settle()
    assert connection.statuses == [401]
    connection.after(30.1)
    assert connection.statuses == [401] and connection.closed
    connection.leaves()


async def test_slow_pipelined_request_does_not_disturb_the_answer_under_way(play: Playing) -> None:
    p = play("r0", limits=None)
    connection = await moved(p)
    engine = await engine_after(p, connection, post(STREAM_BODY))
    engine.begins_stream()
    engine.streams(HELLO)
    await p.settle()
    connection >> b"POST /v1/chat"
    for _ in range(4):
        connection.after(10.0)
        engine.streams(sse.token(BOT_V1, "."))
        await p.settle()
    assert connection.statuses == [200] and not connection.closed
    engine.streams(END)
    engine.ends_stream()
    await p.settle()
    assert connection.answer.complete
    connection.after(30.1)
    assert connection.statuses == [200, 408] and connection.closed
    connection.leaves()


async def test_pipelined_requests_are_answered_in_turn(play: Playing) -> None:
    p = play("r0")
    connection = await moved(p) >> post(STREAM_BODY) + post(CHAT_BODY)
    await p.settle()
    engine = await p.connects()
    connection.after(20.0)
    await finished(p, engine)
    connection.after(20.0)
    await p.settle()
    second = p.engine if not p.dials else await p.connects()
    second.answers(200, sse.whole(BOT_V1))
    await p.settle()
    assert connection.statuses == [200, 200]
    connection.leaves()


async def test_garbage_while_an_answer_runs_ends_the_connection_without_a_second_answer(play: Playing) -> None:
    p = play("r0")
    connection = await moved(p)
    engine = await engine_after(p, connection, post(STREAM_BODY))
    connection >> b"\x00garbage\r\n\r\n"
    assert connection.answers == [] and connection.closed
    connection.leaves()
    await p.settle()
    assert engine.dropped and p.quiet()


@pytest.mark.parametrize("size", [None, 100])
async def test_a_head_over_its_bound(play: Playing, size: int | None) -> None:
    p = play("r0")
    connection = await moved(p)
    data = get("/healthz", x="y" * 17_000)
    for start in range(0, len(data), size or len(data)):
        connection >> data[start : start + (size or len(data))]
    assert (connection.answer.status, connection.answer.code) == (431, "headers_too_large")
    assert connection.closed
    connection.leaves()


async def test_closing_connection_that_is_not_read_is_cut(play: Playing) -> None:
    p = play("r0")
    connection = await moved(p) >> b"garbage\r\n\r\n"
    assert connection.closed and not connection.cut
    connection.after(0.1)
    connection.after(30.0)
    assert not connection.cut
    connection.after(0.2)
    assert connection.cut
    connection.leaves()


async def test_a_client_that_does_not_read_is_cut_on_any_route(play: Playing) -> None:
    p = play("r0")
    connection = await moved(p)
    connection.stops_reading()
    connection >> get("/healthz")
    await p.settle()
    connection.after(30.1)
    assert connection.cut and connection.answers == []
    connection.leaves()
    await p.settle()


async def test_client_that_resumes_reading_is_not_cut(play: Playing) -> None:
    p = play("r0")
    connection = await moved(p)
    connection.stops_reading()
    connection.after(20.0)
    connection.reads_on()
    connection.after(20.0)
    assert not connection.closed
    connection.leaves()


async def test_a_slow_reader_pauses_the_engine_and_a_stalled_one_ends_it(play: Playing) -> None:
    p = play("r0")
    connection = await moved(p)
    engine = await engine_after(p, connection, post(STREAM_BODY))
    engine.begins_stream()
    engine.streams(HELLO)
    await p.settle()
    connection.stops_reading()
    for _ in range(5):
        engine.streams(sse.token(BOT_V1, "x" * 20_000))
        await p.settle()
    assert engine.paused
    connection.reads_on()
    await p.settle()
    assert not engine.paused
    connection.stops_reading()
    connection.after(30.1)
    assert connection.cut
    connection.leaves()
    await p.settle()
    assert engine.dropped and p.quiet()


async def test_client_disconnect_ends_its_request(play: Playing) -> None:
    p = play("r0")
    connection = await moved(p)
    engine = await engine_after(p, connection, post(STREAM_BODY))
    connection.leaves()
    await p.settle()
    assert engine.dropped and p.quiet() and not p.gateway.services.connections


async def test_a_handlers_failure_has_openais_shape(play: Playing) -> None:
    p = play("r0")
    connection = await moved(p)
    p.gateway.services = replace(p.gateway.services, fleet=None)  # type: ignore[arg-type]
    connection >> get("/readyz", **{"x-request-id": "mine"})
    await p.settle()
    assert (connection.answer.status, connection.answer.code) == (500, "internal_error")
    assert connection.answer.headers["x-request-id"] == "mine"
    connection.leaves()


# connections that ASGI servers leave open


async def test_empty_line_after_an_answer_does_not_keep_a_connection_open(play: Playing) -> None:
    """It stopped uvicorn's own timer without starting a request: such a connection stayed for ever."""
    p = play("r0")
    connection = await moved(p) >> b"\r\n"
    for _ in range(7):
        connection.after(10.0)
        connection >> b"\r\n"
    assert not connection.closed
    connection.after(5.1)
    assert connection.closed and not connection.answers


async def test_pipelined_requests_are_bounded(play: Playing) -> None:
    """Each costs 3 KB for 18 bytes on the wire: 40 such connections held gigabytes."""
    p = play("r0")
    connection = await moved(p)
    await engine_after(p, connection, post(STREAM_BODY))
    connection >> get("/healthz") * 100
    assert connection.closed and connection.answers == []
    connection.leaves()
    await p.settle()


async def test_client_that_reads_steadily_is_not_cut(play: Playing) -> None:
    p = play("r0")
    connection = await moved(p)
    connection.transport.unread_bytes = 3_000_000
    connection.stops_reading()
    for left_bytes in (2_400_000, 1_800_000):
        connection.transport.unread_bytes = left_bytes
        connection.after(30.1)
        assert not connection.cut
    connection.after(30.1)
    assert connection.cut
    connection.leaves()


async def test_http_1_0_answer_is_not_chunked_and_ends_with_close(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p) >> post(STREAM_BODY, version="1.0")
    await p.settle()
    await finished(p, await p.connects())
    head, _, body = bytes(connection.transport.got).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ") and b"transfer-encoding" not in head and b"connection: close" in head
    assert body == PUBLIC_HELLO + PUBLIC_END and connection.closed
    connection.leaves()


@pytest.mark.parametrize("path", ["/health", "/healthz", "/readyz"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_probes_as_tools_and_load_balancers_send_them(
    play: Playing, path: str, method: str, version: str
) -> None:
    connection = Connection(play("r0"))
    host = "Host: x\r\n" if version == "1.1" else ""
    connection >> f"{method} {path} HTTP/{version}\r\n{host}\r\n".encode()
    await connection.play.settle()
    assert bytes(connection.transport.got).startswith(b"HTTP/1.1 200 ")
    assert (bytes(connection.transport.got)[-4:] == b"\r\n\r\n") is (method == "HEAD")
    connection.leaves()


# draining


async def test_draining_connection_answers_a_request_on_its_way(play: Playing) -> None:
    """Closed at once, the connection hit clients that were just sending: they got an error instead of an answer."""
    p = play("r0")
    connection = await moved(p)
    connection.transport.protocol.shutdown()
    assert not connection.closed
    connection >> get("/healthz")
    await p.settle()
    assert connection.answer.status == 200 and connection.answer.headers["connection"] == "close" and connection.closed
    connection.leaves()


async def test_silent_draining_connection_closes(play: Playing) -> None:
    p = play("r0")
    connection = await moved(p)
    connection.transport.protocol.shutdown()
    connection.after(p.gateway.services.limits.lame_duck_s + 0.1)
    assert connection.closed and not connection.answers


@pytest.mark.parametrize("lane", ["fast", "plain"])
async def test_idle_connections_stay_open_longer_after_a_handover(play: Playing, lane: str) -> None:
    """After a handover there is no hurry: a connection closes once its client was told, or after a long silence."""
    p = play("r0")
    p.gateway.services.http.lame_duck_s = p.gateway.services.limits.lame_duck_handover_s
    connection = await moved(p) if lane == "plain" else Connection(p)
    if lane == "fast":
        await answered(connection)
        connection.transport.got.clear()
    connection.transport.protocol.shutdown()
    connection.after(25.0)
    assert not connection.closed
    connection >> get("/healthz")
    await p.settle()
    assert connection.answer.headers["connection"] == "close" and connection.closed
    connection.leaves()


async def test_messages_routes_return_the_request_id_header(play: Playing) -> None:
    p = play("r0")
    connection = (
        Connection(p) >> post(b"{}", path="/v1/messages", x_request_id="mine") >> post(b"{}", path="/v1/tokenize")
    )
    await p.settle()
    first, second = connection.answers
    assert first.headers["request-id"] == first.headers["x-request-id"] == "mine"
    assert "request-id" not in second.headers
    connection.leaves()


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/"])
async def test_models_path_with_extra_slash_is_served(play: Playing, path: str) -> None:
    p = play("r0")
    connection = Connection(p) >> get(path, Authorization=f"Bearer {ACME_KEY}")
    await p.settle()
    assert connection.answer.status == 200 and b'"object":"list"' in connection.answer.body
    connection.leaves()
