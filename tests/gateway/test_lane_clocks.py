"""The lane's clocks, and clients that leave or do not read."""

import pytest

from tests.gateway import sse
from tests.gateway.client_rig import (
    CHAT_BODY,
    STREAM_BODY,
    Wire,
    post,
)
from tests.gateway.hello import END, HELLO, Playing
from tests.gateway.lane_steps import answered
from tests.gateway.world import BOT_V1, limits

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


async def test_a_slow_handshake_leaves_the_head_its_time(play: Playing) -> None:
    """The lane is there when a connection is accepted; two hundred handshakes at once take seconds of a busy core."""
    p = play("r0")
    wire = Wire(p, handshake_s=9.0)
    wire.after(9.0)
    assert not wire.closed
    wire >> post(CHAT_BODY)
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    assert wire.statuses == [200]


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
    assert engine.dropped and p.quiet() and not p.gateway.services.connections


async def test_a_half_close_is_a_disconnect(play: Playing) -> None:
    assert not Wire(play("r0")).lane.eof_received()


async def test_a_client_that_leaves_in_its_head_or_body(play: Playing) -> None:
    p = play("r0")
    for data in (b"", b"POST /v1", post(b"{", length=50)):
        wire = Wire(p) >> data
        wire.leaves()
    assert not p.gateway.services.connections and p.quiet()


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


@pytest.mark.parametrize("header", [{}, {"connection": "close"}])
async def test_a_client_on_a_slow_line_is_not_one_that_never_reads(play: Playing, header: dict[str, str]) -> None:
    p = play("r0")
    wire = Wire(p) >> post(**header)
    engine = await p.connects()
    wire.stops_reading()
    wire.transport.unread_bytes = 8_000_000
    engine.answers(200, sse.whole(BOT_V1))
    for left_bytes in (7_000_000, 6_400_000, 5_800_000):
        wire.transport.unread_bytes = left_bytes
        wire.after(30.1)
        assert not wire.cut
    wire.transport.unread_bytes -= 100_000  # of a trickle that would hold these megabytes for an hour
    wire.after(30.1)
    assert wire.cut
