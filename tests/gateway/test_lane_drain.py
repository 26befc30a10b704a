"""The lane while the server drains, in each of its phases."""

import pytest

from tests.gateway import sse
from tests.gateway.client_rig import (
    STREAM_BODY,
    Connection,
    Server,
    get,
    post,
)
from tests.gateway.hello import END, HELLO, Playing
from tests.gateway.lane_steps import answered
from tests.gateway.rig import BOT_V1


async def test_shutdown_while_idle_leaves_time_for_a_request_on_its_way(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p)
    connection.lane.shutdown()
    connection.after(0.9)
    assert not connection.closed
    await answered(connection)
    assert connection.answer.headers["connection"] == "close" and connection.closed


async def test_shutdown_while_idle(play: Playing) -> None:
    connection = Connection(play("r0"))
    connection.lane.shutdown()
    connection.after(1.1)
    assert connection.closed and not connection.answers


@pytest.mark.parametrize("cut_at", [10, 200, len(post()) - 3])
async def test_shutdown_while_a_request_arrives(play: Playing, cut_at: int) -> None:
    p = play("r0")
    data = post()
    connection = Connection(p) >> data[:cut_at]
    connection.lane.shutdown()
    connection.after(2.0)
    connection >> data[cut_at:]
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    assert connection.answer.status == 200 and connection.answer.headers["connection"] == "close" and connection.closed


async def test_shutdown_while_an_answer_streams(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p) >> post(STREAM_BODY)
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    connection.lane.shutdown()
    connection.after(5.0)
    assert not connection.closed
    engine.streams(END)
    engine.ends_stream()
    assert connection.answer.complete and connection.closed and not connection.cut


async def test_shutdown_while_an_answer_waits_to_be_read(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p) >> post()
    engine = await p.connects()
    connection.stops_reading()
    engine.answers(200, sse.whole(BOT_V1))
    connection.lane.shutdown()
    connection.reads_on()
    assert connection.closed and not connection.cut


async def test_shutdown_while_lingering_or_closing(play: Playing) -> None:
    connection = Connection(play("r0")) >> post(b"", length=10**9)
    connection.lane.shutdown()
    connection.after(2.1)
    assert connection.closed
    connection.lane.shutdown()
    connection.after(30.1)
    assert connection.cut


async def test_a_connection_made_while_draining_serves_one_request(play: Playing) -> None:
    p = play("r0")
    p.gateway.services.state.draining = True
    connection = Connection(p)
    await answered(connection)
    assert connection.answer.headers["connection"] == "close" and connection.closed


async def test_draining_connection_moved_to_uvicorn_closes_after_its_answer(play: Playing) -> None:
    p = play("r0")
    p.gateway.services.state.draining = True
    connection = Connection(p) >> get("/healthz")
    await p.settle()
    assert connection.answer.headers["connection"] == "close" and connection.closed
    connection.leaves()


async def test_end_of_drain_ends_open_requests(play: Playing) -> None:
    p = play("r0", "r1")
    server = Server(p)
    begun = Connection(p, server) >> post(STREAM_BODY)
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    waiting = Connection(p, server) >> post()
    begun.lane.shutdown()
    waiting.lane.shutdown()
    p.gateway.cut_short()
    assert begun.closed and b'"code":"restarting"' in begun.answer.body
    assert (waiting.answer.status, waiting.answer.code) == (503, "restarting")
    assert waiting.answer.headers["retry-after"] == "1"
    assert p.quiet()


async def test_request_arriving_at_the_end_of_drain_is_rejected(play: Playing) -> None:
    """A request started after that would be cut off unsettled when the process ends."""
    p, data = play("r0"), post(STREAM_BODY)
    connection = Connection(p) >> data[:200]
    p.gateway.services.state.draining = True
    connection.lane.shutdown()
    p.gateway.cut_short()
    connection >> data[200:]
    assert (connection.answer.status, connection.answer.code) == (503, "restarting") and connection.closed
    assert p.quiet()
