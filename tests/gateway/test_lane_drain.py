"""The lane while the server drains, in each of its phases."""

import pytest

from tests.gateway import sse
from tests.gateway.client_rig import (
    STREAM_BODY,
    Server,
    Wire,
    get,
    post,
)
from tests.gateway.hello import END, HELLO, Playing
from tests.gateway.lane_steps import answered
from tests.gateway.world import BOT_V1


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
    p.gateway.services.state.draining = True
    wire = Wire(p)
    await answered(wire)
    assert wire.answer.headers["connection"] == "close" and wire.closed


async def test_a_drained_connection_that_is_handed_over_closes_after_its_answer(play: Playing) -> None:
    p = play("r0")
    p.gateway.services.state.draining = True
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


async def test_a_request_that_was_still_arriving_at_the_drains_end_is_refused(play: Playing) -> None:
    """Begun after that, it would be cut off unsettled when the process goes."""
    p, data = play("r0"), post(STREAM_BODY)
    wire = Wire(p) >> data[:200]
    p.gateway.services.state.draining = True
    wire.lane.shutdown()
    p.gateway.cut_short()
    wire >> data[200:]
    assert (wire.answer.status, wire.answer.code) == (503, "restarting") and wire.closed
    assert p.quiet()
