"""uvicorn's protocol with our clocks: nothing waits for ever, and no answer gets inside another."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.gateway import sse
from tests.gateway.client_rig import CHAT_BODY, STREAM_BODY, Wire, get, post
from tests.gateway.engine_rig import Engine, Play
from tests.gateway.hello import END, HELLO, PUBLIC_END, PUBLIC_HELLO
from tests.gateway.lane_steps import answered
from tests.gateway.world import ACME_KEY, BOT_V1

Playing = Callable[..., Play]


async def moved(p: Play) -> Wire:
    """A connection that uvicorn serves, with nothing under way."""
    wire = Wire(p) >> get("/healthz")
    await p.settle()
    assert wire.statuses == [200] and not wire.on_the_lane
    wire.transport.got.clear()
    return wire


async def asked(p: Play, wire: Wire, data: bytes) -> Engine:
    wire >> data
    await p.settle()
    return await p.connects()


async def finished(p: Play, engine: Engine) -> None:
    engine.begins_stream()
    engine.streams(HELLO, END)
    engine.ends_stream()
    await p.settle()


async def test_a_hot_request_on_the_plain_side(play: Playing) -> None:
    p = play("r0")
    wire = await moved(p)
    await finished(p, await asked(p, wire, post(STREAM_BODY)))
    assert wire.answer.body == PUBLIC_HELLO + PUBLIC_END
    wire.leaves()


async def test_a_head_that_does_not_end(play: Playing) -> None:
    p = play("r0")
    wire = await moved(p) >> b"POST /v1/chat"
    wire.after(9.9)
    assert not wire.answers
    wire.after(0.2)
    assert (wire.answer.status, wire.answer.code) == (408, "request_timeout")
    assert wire.closed
    wire.leaves()


async def test_a_body_that_does_not_end(play: Playing) -> None:
    p = play("r0")
    wire = await moved(p) >> post(b"{", length=100)
    await p.settle()
    wire.after(30.1)
    assert (wire.answer.status, wire.answer.code) == (408, "request_timeout")
    assert wire.closed
    wire.leaves()
    await p.settle()
    assert wire.statuses == [408]


async def test_the_late_body_of_an_answered_request_earns_no_second_answer(play: Playing) -> None:
    p = play("r0")
    wire = await moved(p) >> post(b"{", length=100, key=None)
    await p.settle()
    assert wire.statuses == [401]
    wire.after(30.1)
    assert wire.statuses == [401] and wire.closed
    wire.leaves()


async def test_a_slow_pipelined_request_does_not_get_into_the_answer_under_way(play: Playing) -> None:
    p = play("r0", limits=None)
    wire = await moved(p)
    engine = await asked(p, wire, post(STREAM_BODY))
    engine.begins_stream()
    engine.streams(HELLO)
    await p.settle()
    wire >> b"POST /v1/chat"
    for _ in range(4):
        wire.after(10.0)
        engine.streams(sse.token(BOT_V1, "."))
        await p.settle()
    assert wire.statuses == [200] and not wire.closed
    engine.streams(END)
    engine.ends_stream()
    await p.settle()
    assert wire.answer.complete
    wire.after(30.1)
    assert wire.statuses == [200, 408] and wire.closed
    wire.leaves()


async def test_pipelined_requests_are_answered_in_turn(play: Playing) -> None:
    p = play("r0")
    wire = await moved(p) >> post(STREAM_BODY) + post(CHAT_BODY)
    await p.settle()
    engine = await p.connects()
    wire.after(20.0)
    await finished(p, engine)
    wire.after(20.0)
    await p.settle()
    second = p.engine if not p.dials else await p.connects()
    second.answers(200, sse.whole(BOT_V1))
    await p.settle()
    assert wire.statuses == [200, 200]
    wire.leaves()


async def test_garbage_while_an_answer_runs_ends_the_connection_without_a_second_answer(play: Playing) -> None:
    p = play("r0")
    wire = await moved(p)
    engine = await asked(p, wire, post(STREAM_BODY))
    wire >> b"\x00garbage\r\n\r\n"
    assert wire.answers == [] and wire.closed
    wire.leaves()
    await p.settle()
    assert engine.dropped and p.quiet()


@pytest.mark.parametrize("size", [None, 100])
async def test_a_head_over_its_bound(play: Playing, size: int | None) -> None:
    p = play("r0")
    wire = await moved(p)
    data = get("/healthz", x="y" * 17_000)
    for start in range(0, len(data), size or len(data)):
        wire >> data[start : start + (size or len(data))]
    assert (wire.answer.status, wire.answer.code) == (431, "headers_too_large")
    assert wire.closed
    wire.leaves()


async def test_a_connection_that_closes_but_is_not_read_is_cut(play: Playing) -> None:
    p = play("r0")
    wire = await moved(p) >> b"garbage\r\n\r\n"
    assert wire.closed and not wire.cut
    wire.after(0.1)
    wire.after(30.0)
    assert not wire.cut
    wire.after(0.2)
    assert wire.cut
    wire.leaves()


async def test_a_client_that_does_not_read_is_cut_on_any_route(play: Playing) -> None:
    p = play("r0")
    wire = await moved(p)
    wire.stops_reading()
    wire >> get("/healthz")
    await p.settle()
    wire.after(30.1)
    assert wire.cut and wire.answers == []
    wire.leaves()
    await p.settle()


async def test_a_client_that_reads_again_is_not(play: Playing) -> None:
    p = play("r0")
    wire = await moved(p)
    wire.stops_reading()
    wire.after(20.0)
    wire.reads_on()
    wire.after(20.0)
    assert not wire.closed
    wire.leaves()


async def test_a_slow_reader_pauses_the_engine_and_a_stalled_one_ends_it(play: Playing) -> None:
    p = play("r0")
    wire = await moved(p)
    engine = await asked(p, wire, post(STREAM_BODY))
    engine.begins_stream()
    engine.streams(HELLO)
    await p.settle()
    wire.stops_reading()
    for _ in range(5):
        engine.streams(sse.token(BOT_V1, "x" * 20_000))
        await p.settle()
    assert engine.paused
    wire.reads_on()
    await p.settle()
    assert not engine.paused
    wire.stops_reading()
    wire.after(30.1)
    assert wire.cut
    wire.leaves()
    await p.settle()
    assert engine.dropped and p.quiet()


async def test_a_client_that_leaves_takes_its_request_along(play: Playing) -> None:
    p = play("r0")
    wire = await moved(p)
    engine = await asked(p, wire, post(STREAM_BODY))
    wire.leaves()
    await p.settle()
    assert engine.dropped and p.quiet() and not p.gateway.services.connections


async def test_a_handlers_failure_has_openais_shape(play: Playing) -> None:
    p = play("r0")
    wire = await moved(p)
    p.gateway.services = replace(p.gateway.services, fleet=None)  # type: ignore[arg-type]
    wire >> get("/readyz", **{"x-request-id": "mine"})
    await p.settle()
    assert (wire.answer.status, wire.answer.code) == (500, "internal_error")
    assert wire.answer.headers["x-request-id"] == "mine"
    wire.leaves()


# what ASGI servers leave open


async def test_an_empty_line_after_an_answer_does_not_hold_a_connection(play: Playing) -> None:
    """It ended uvicorn's own timer, and was the beginning of nothing: such a connection stayed for ever."""
    p = play("r0")
    wire = await moved(p) >> b"\r\n"
    for _ in range(7):
        wire.after(10.0)
        wire >> b"\r\n"
    assert not wire.closed
    wire.after(5.1)
    assert wire.closed and not wire.answers


async def test_requests_that_wait_behind_one_are_bounded(play: Playing) -> None:
    """Each costs 3 KB for 18 bytes on the wire: 40 connections of them were gigabytes."""
    p = play("r0")
    wire = await moved(p)
    await asked(p, wire, post(STREAM_BODY))
    wire >> get("/healthz") * 100
    assert wire.closed and wire.answers == []
    wire.leaves()
    await p.settle()


async def test_a_client_on_a_slow_line_is_not_cut(play: Playing) -> None:
    p = play("r0")
    wire = await moved(p)
    wire.transport.unread_bytes = 3_000_000
    wire.stops_reading()
    for left_bytes in (2_400_000, 1_800_000):
        wire.transport.unread_bytes = left_bytes
        wire.after(30.1)
        assert not wire.cut
    wire.after(30.1)
    assert wire.cut
    wire.leaves()


async def test_http_1_0_is_answered_without_chunks_and_to_the_end(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p) >> post(STREAM_BODY, version="1.0")
    await p.settle()
    await finished(p, await p.connects())
    head, _, body = bytes(wire.transport.got).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ") and b"transfer-encoding" not in head and b"connection: close" in head
    assert body == PUBLIC_HELLO + PUBLIC_END and wire.closed
    wire.leaves()


@pytest.mark.parametrize("path", ["/health", "/healthz", "/readyz"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_probes_as_tools_and_load_balancers_send_them(
    play: Playing, path: str, method: str, version: str
) -> None:
    wire = Wire(play("r0"))
    host = "Host: x\r\n" if version == "1.1" else ""
    wire >> f"{method} {path} HTTP/{version}\r\n{host}\r\n".encode()
    await wire.play.settle()
    assert bytes(wire.transport.got).startswith(b"HTTP/1.1 200 ")
    assert (bytes(wire.transport.got)[-4:] == b"\r\n\r\n") is (method == "HEAD")
    wire.leaves()


# draining


async def test_a_request_on_its_way_to_a_connection_that_drains_is_answered(play: Playing) -> None:
    """Closed at once, it met clients that were just sending: an error where an answer was due."""
    p = play("r0")
    wire = await moved(p)
    wire.transport.protocol.shutdown()
    assert not wire.closed
    wire >> get("/healthz")
    await p.settle()
    assert wire.answer.status == 200 and wire.answer.headers["connection"] == "close" and wire.closed
    wire.leaves()


async def test_a_connection_that_drains_and_says_nothing_closes(play: Playing) -> None:
    p = play("r0")
    wire = await moved(p)
    wire.transport.protocol.shutdown()
    wire.after(p.gateway.services.limits.lame_duck_s + 0.1)
    assert wire.closed and not wire.answers


@pytest.mark.parametrize("lane", ["fast", "plain"])
async def test_after_a_handover_idle_clients_have_time_to_learn_of_it(play: Playing, lane: str) -> None:
    """Nothing waits for this process: a connection closes once its client was told so, or has kept silent for long."""
    p = play("r0")
    p.gateway.services.http.lame_duck_s = p.gateway.services.limits.lame_duck_handover_s
    wire = await moved(p) if lane == "plain" else Wire(p)
    if lane == "fast":
        await answered(wire)
        wire.transport.got.clear()
    wire.transport.protocol.shutdown()
    wire.after(25.0)
    assert not wire.closed
    wire >> get("/healthz")
    await p.settle()
    assert wire.answer.headers["connection"] == "close" and wire.closed
    wire.leaves()


async def test_the_messages_routes_name_their_request_as_that_sdk_reads_it(play: Playing) -> None:
    p = play("r0")
    wire = Wire(p) >> post(b"{}", path="/v1/messages", x_request_id="mine") >> post(b"{}", path="/v1/tokenize")
    await p.settle()
    first, second = wire.answers
    assert first.headers["request-id"] == first.headers["x-request-id"] == "mine"
    assert "request-id" not in second.headers
    wire.leaves()


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/"])
async def test_models_with_a_slash_too_many(play: Playing, path: str) -> None:
    p = play("r0")
    wire = Wire(p) >> get(path, Authorization=f"Bearer {ACME_KEY}")
    await p.settle()
    assert wire.answer.status == 200 and b'"object":"list"' in wire.answer.body
    wire.leaves()
