"""Clients that leave, dawdle or do not read. Time is real here: the promise is how soon the engine is notified."""

import asyncio
import os
import ssl
import time
from pathlib import Path

import psutil
import pytest

from tests.gateway import sse
from tests.gateway.client_rig import CHAT_BODY, STREAM_BODY, post
from tests.gateway.live import WAYS, LiveGateway, Served, Way, client, engine, quiet
from tests.gateway.rig import BOT_V1

pytestmark = [pytest.mark.servers, pytest.mark.parametrize("way", WAYS, ids=str)]
PROMISED_S = 1.0
MEASURED_S = 5 * PROMISED_S  # for slower machines; the drills print the time measured


async def silent(served: Served) -> None:
    """Accept the request and stay silent until it is dropped, as in a long prefill."""
    await served.until_dropped()


async def talking(served: Served) -> None:
    """Stream ten events a second without end."""
    await served.begin_stream()
    while True:
        await served.event(sse.token(served.model, "x"))
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("body", [STREAM_BODY, CHAT_BODY], ids=["stream", "whole"])
async def test_disconnect_before_the_first_byte_frees_the_engine(
    live: LiveGateway, trust: ssl.SSLContext, way: Way, body: bytes
) -> None:
    async with engine(live, silent) as played, client(live, way, trust) as caller:
        await caller.send(post(body))
        while not played.served:
            await asyncio.sleep(0.01)
        left_s = caller.leave()
        assert await played.dropped_within_s(left_s) < MEASURED_S
        assert await quiet(live)


@pytest.mark.parametrize("how", ["abort", "close", "half-close"])
async def test_disconnect_mid_stream_frees_the_engine(
    live: LiveGateway, trust: ssl.SSLContext, way: Way, how: str
) -> None:
    if way.tls and how == "half-close":
        how = "close"  # TLS has no half-close
    async with engine(live, talking) as played, client(live, way, trust) as caller:
        await caller.send(post(STREAM_BODY))
        await caller.until(b'"content":"x"')
        left_s = time.monotonic()
        if how == "abort":
            caller.leave()
        elif how == "close":
            caller.writer.close()
        else:
            caller.writer.write_eof()
        assert await played.dropped_within_s(left_s) < MEASURED_S
        assert await quiet(live)


async def test_disconnect_inside_a_body_reaches_no_engine(live: LiveGateway, trust: ssl.SSLContext, way: Way) -> None:
    async with engine(live) as played, client(live, way, trust) as caller:
        await caller.send(post(b'{"model"', length=500))
        await asyncio.sleep(0.05)
        caller.leave()
        await asyncio.sleep(0.05)
        assert played.served == []
    assert await quiet(live)


async def test_unfinished_head_times_out(hasty: LiveGateway, trust: ssl.SSLContext, way: Way) -> None:
    async with client(hasty, way, trust) as caller:
        started_s = time.monotonic()
        for byte in b"POST /v1/c":
            await caller.send(bytes([byte]))
            await asyncio.sleep(0.01)
        answer = await caller.answer()
        assert (answer.status, answer.code) == (408, "request_timeout")
        assert await caller.rest() == b""
        assert time.monotonic() - started_s < 9.0, "the clock of this gateway, not the usual one"


async def test_unfinished_body_times_out(hasty: LiveGateway, trust: ssl.SSLContext, way: Way) -> None:
    async with engine(hasty) as played, client(hasty, way, trust) as caller:
        await caller.send(post(b"{", length=1000))
        answer = await caller.answer()
        assert (answer.status, answer.code) == (408, "request_timeout")
        assert await caller.rest() == b"" and played.served == []


async def test_silent_connection_closes(hasty: LiveGateway, trust: ssl.SSLContext, way: Way) -> None:
    """A connection on the plain side has sent a request a moment before."""
    async with client(hasty, way, trust) as caller:
        assert await caller.rest() == b""


async def test_chunked_body_over_the_bound_is_refused_while_it_arrives(
    live: LiveGateway, trust: ssl.SSLContext, way: Way
) -> None:
    async with client(live, way, trust) as caller:
        await caller.send(post(b"", transfer_encoding="chunked"))
        part = b"10000\r\n" + b" " * 65536 + b"\r\n"
        for _ in range(70):
            await caller.send(part)
        answer = await caller.answer()
        assert (answer.status, answer.code) == (413, "body_too_large")


async def test_a_client_that_never_reads(hasty: LiveGateway, trust: ssl.SSLContext, way: Way) -> None:
    """The engine is paused, so that no memory is used; then the client is cut off."""
    sent_bytes = 0

    async def flooding(served: Served) -> None:
        nonlocal sent_bytes
        served.writer.transport.set_write_buffer_limits(high=65536)
        await served.begin_stream()
        event = sse.token(served.model, "x" * 60_000)
        while True:
            await served.event(event)
            sent_bytes += len(event)

    process = psutil.Process(os.getpid())
    async with engine(hasty, flooding) as played, client(hasty, way, trust) as caller:
        caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
        before_bytes = process.memory_info().rss
        started_s = time.monotonic()
        await caller.send(post(STREAM_BODY))
        await played.dropped_within_s(started_s)
        assert sent_bytes < 24 * 1024 * 1024, "more than the kernel's buffers hold went through"
        assert process.memory_info().rss - before_bytes < 24 * 1024 * 1024
    assert await quiet(hasty)


async def test_client_that_never_reads_answers_is_not_served_more_requests(
    hasty: LiveGateway, trust: ssl.SSLContext, way: Way
) -> None:
    """Unread answers do not accumulate: the next request is read only after the last answer."""

    async def large(served: Served) -> None:
        await served.answer(sse.whole(served.model, "x" * 8_000_000))

    async with engine(hasty, large) as played, client(hasty, way, trust) as caller:
        caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(10):
            await caller.send(post())
            await asyncio.sleep(0.03)
        await asyncio.sleep(0.3)
        # One waits and one is being read; over TLS, uvloop counts only the next large write as waiting.
        assert len(played.served) <= (4 if way.tls else 2)
    assert await quiet(hasty)


async def test_a_slow_reader_gets_everything(live: LiveGateway, trust: ssl.SSLContext, way: Way) -> None:
    async def long(served: Served) -> None:
        await served.begin_stream()
        for number in range(300):
            await served.event(sse.token(served.model, f"<{number}>" + "x" * 20_000))
        await served.event(sse.DONE)
        await served.end_stream()

    async with engine(live, long), client(live, way, trust) as caller:
        await caller.send(post(STREAM_BODY))
        await asyncio.sleep(0.3)
        answer = await caller.answer()
        assert [f"<{number}>".encode() in answer.body for number in range(300)] == [True] * 300
        assert answer.body.endswith(sse.DONE)


async def test_stuck_clients_do_not_disturb_others(
    hasty: LiveGateway, trust: ssl.SSLContext, way: Way, tmp_path: Path
) -> None:
    """Others are served while one client does not read and one does not finish its head."""
    async with (
        engine(hasty),
        client(hasty, way, trust) as stuck,
        client(hasty, way, trust) as slow,
        client(hasty, way, trust) as caller,
    ):
        stuck.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await stuck.send(post(STREAM_BODY))
        await slow.send(b"POST /v1")
        await caller.send(post())
        assert (await caller.answer()).body == sse.whole("acme/bot", "you said hi")


async def test_pipelined_requests_do_not_corrupt_the_answer(live: LiveGateway, trust: ssl.SSLContext, way: Way) -> None:
    async with engine(live) as played, client(live, way, trust) as caller:
        await caller.send(post(STREAM_BODY) + post() + b"POST /half")
        answer = await caller.answer()
        assert answer.status == 200 and answer.body.endswith(sse.DONE)
        assert played.served[0].model == BOT_V1
    assert await quiet(live)
