"""uvicorn's protocol with our clocks: nothing waits for ever, and no answer gets inside another."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.gateway import sse
from tests.gateway.client_rig import CHAT_BODY, STREAM_BODY, Wire, get, post
from tests.gateway.engine_rig import Engine, Play
from tests.gateway.hello import END, HELLO, PUBLIC_END, PUBLIC_HELLO
from tests.gateway.world import BOT_V1

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
