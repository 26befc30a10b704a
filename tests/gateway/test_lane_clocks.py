"""The lane's timeouts, and clients that leave or do not read."""

import pytest

from tests.gateway import sse
from tests.gateway.client_rig import (
    CHAT_BODY,
    STREAM_BODY,
    Connection,
    post,
)
from tests.gateway.hello import END, HELLO, Playing
from tests.gateway.lane_steps import answered
from tests.gateway.rig import BOT_V1, limits

# timeouts


async def test_silent_connection_closes(play: Playing) -> None:
    connection = Connection(play("r0"))
    connection.after(9.9)
    assert not connection.closed
    connection.after(0.2)
    assert connection.closed and connection.answers == []


async def test_unfinished_head_times_out(play: Playing) -> None:
    connection = Connection(play("r0"))
    connection.after(9.0)
    connection >> b"POST "
    for _ in range(9):
        connection.after(1.0)
        connection >> b"x"
    assert not connection.closed and not connection.answers
    connection.after(1.1)
    assert (connection.answer.status, connection.answer.code) == (408, "request_timeout")


async def test_a_slow_handshake_leaves_the_head_its_time(play: Playing) -> None:
    """The lane exists from the accept on; two hundred concurrent handshakes take seconds of a busy core."""
    p = play("r0")
    connection = Connection(p, handshake_s=9.0)
    connection.after(9.0)
    assert not connection.closed
    connection >> post(CHAT_BODY)
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    assert connection.statuses == [200]


async def test_unfinished_body_times_out(play: Playing) -> None:
    connection = Connection(play("r0")) >> post(b"{", length=1000)
    for _ in range(29):
        connection.after(1.0)
        connection >> b" "
    assert not connection.answers
    connection.after(1.1)
    assert (connection.answer.status, connection.answer.code) == (408, "request_timeout")


async def test_idle_connection_closes_after_keep_alive(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p)
    await answered(connection)
    connection.after(74.9)
    assert not connection.closed
    connection.after(0.2)
    assert connection.closed and connection.statuses == [200]


async def test_keep_alive_timeout_does_not_end_an_answer_under_way(play: Playing) -> None:
    p = play("r0", limits=limits(first_byte_s=200.0))
    connection = Connection(p) >> post(STREAM_BODY)
    await p.connects()
    connection.after(100.0)
    assert not connection.closed and not connection.answers


async def test_close_that_is_not_read_is_forced(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p) >> post(connection="close")
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    connection.after(29.9)
    assert connection.closed and not connection.cut
    connection.after(0.2)
    assert connection.cut


# clients that leave, clients that do not read


async def test_client_disconnect_ends_its_request(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p) >> post(STREAM_BODY)
    engine = await p.connects()
    connection.leaves()
    assert engine.dropped and p.quiet() and not p.gateway.services.connections


async def test_a_half_close_is_a_disconnect(play: Playing) -> None:
    assert not Connection(play("r0")).lane.eof_received()


async def test_client_disconnect_in_head_or_body_leaves_nothing_behind(play: Playing) -> None:
    p = play("r0")
    for data in (b"", b"POST /v1", post(b"{", length=50)):
        connection = Connection(p) >> data
        connection.leaves()
    assert not p.gateway.services.connections and p.quiet()


async def test_a_slow_reader_pauses_the_engine(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p) >> post(STREAM_BODY)
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    connection.stops_reading()
    assert engine.paused
    connection.reads_on()
    assert not engine.paused
    connection.stops_reading()
    connection.after(30.1)
    assert connection.cut and engine.dropped


@pytest.mark.parametrize("stream", [True, False])
async def test_reading_pauses_until_the_last_answer_is_read(play: Playing, stream: bool) -> None:
    """Otherwise a client that sends requests and never reads could have any number of answers wait in memory."""
    p = play("r0")
    connection = Connection(p) >> post(STREAM_BODY if stream else CHAT_BODY)
    engine = await p.connects()
    connection.stops_reading()
    if stream:
        engine.begins_stream()
        engine.streams(HELLO, END)
        engine.ends_stream()
    else:
        engine.answers(200, sse.whole(BOT_V1))
    assert connection.answer.complete and connection.transport.reading_paused
    connection.reads_on()
    assert not connection.transport.reading_paused
    await answered(connection)
    assert connection.statuses == [200, 200]


async def test_answer_that_fills_the_buffer_after_its_end_is_timed(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p)
    await answered(connection)
    connection.stops_reading()  # uvloop may notice only when it flushes, a moment later
    assert connection.transport.reading_paused
    connection.after(30.1)
    assert connection.cut


async def test_a_client_that_never_reads_its_whole_answer_is_cut_off(play: Playing) -> None:
    p = play("r0")
    connection = Connection(p) >> post()
    engine = await p.connects()
    connection.stops_reading()
    engine.answers(200, sse.whole(BOT_V1))
    connection.after(29.9)
    assert not connection.cut
    connection.after(0.2)
    assert connection.cut


@pytest.mark.parametrize("header", [{}, {"connection": "close"}])
async def test_client_that_reads_slowly_is_not_cut_off(play: Playing, header: dict[str, str]) -> None:
    p = play("r0")
    connection = Connection(p) >> post(**header)
    engine = await p.connects()
    connection.stops_reading()
    connection.transport.unread_bytes = 8_000_000
    engine.answers(200, sse.whole(BOT_V1))
    for left_bytes in (7_000_000, 6_400_000, 5_800_000):
        connection.transport.unread_bytes = left_bytes
        connection.after(30.1)
        assert not connection.cut
    connection.transport.unread_bytes -= 100_000  # at this rate the client would hold these megabytes for an hour
    connection.after(30.1)
    assert connection.cut
