"""Engines that die, hang or send invalid bytes, on real sockets: the client's view, and no connection left open."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable

import pytest

from tests.gateway import sse
from tests.gateway.client_rig import CHAT_BODY, STREAM_BODY, post
from tests.gateway.live import WAYS, LiveGateway, Script, Served, Way, client, engine, quiet, well
from tests.gateway.rig import BOT_V1

pytestmark = [pytest.mark.servers, pytest.mark.parametrize("way", WAYS, ids=str)]


def then_dies(act: Callable[[Served], Awaitable[None]]) -> Script:
    async def script(served: Served) -> None:
        await act(served)
        served.writer.transport.abort()

    return script


async def says(served: Served, data: bytes) -> None:
    await served.send(data)


def raw(data: bytes) -> Script:
    return then_dies(lambda served: says(served, data))


def hanging(data: bytes = b"") -> Script:
    async def script(served: Served) -> None:
        if data:
            await served.send(data)
        await served.until_dropped()

    return script


SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
WHOLE = sse.whole(BOT_V1, "you said hi")

BEFORE_STREAM = {
    "dies at once": raw(b""),
    "dies after its head": raw(SSE),
    "dies in its first event": raw(SSE + b"40\r\ndata: {"),
    "HTML": raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>"),
    "not HTTP": raw(b"220 smtp ready\r\n"),
    "HTTP/0.9": raw(b"<html></html>"),
    "503": raw(b"HTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n"),
    "a redirect": raw(b"HTTP/1.1 302 X\r\nlocation: http://evil/\r\ncontent-length: 0\r\n\r\n"),
    "an empty stream": raw(SSE + b"0\r\n\r\n"),
    "a role, then death": raw(SSE + b"%x\r\n%b\r\n" % (len(sse.role(BOT_V1)), sse.role(BOT_V1))),
    "hangs at once": hanging(),
    "hangs after its head": hanging(SSE),
    "1 MiB without an end": raw(SSE + b"200000\r\ndata: " + b"x" * 0x1FFFFA + b"\r\n"),
}
BEFORE_WHOLE = {
    "dies at once": raw(b""),
    "a body that is cut": raw(JSON + b"content-length: %d\r\n\r\n" % len(WHOLE) + WHOLE[:-5]),
    "a length too small": raw(JSON + b"content-length: 10\r\n\r\n" + WHOLE),
    "no length": raw(JSON + b"\r\n" + WHOLE),
    "a chunk that is cut": raw(JSON + b"transfer-encoding: chunked\r\n\r\nfff\r\n" + WHOLE),
    "length and chunks": raw(JSON + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n"),
    "not JSON": raw(JSON + b"content-length: 6\r\n\r\n<html>"),
    "half a JSON": raw(JSON + b"content-length: 6\r\n\r\n" + WHOLE[:6]),
    "events": raw(SSE + b"0\r\n\r\n"),
}


@pytest.mark.parametrize("name", BEFORE_STREAM)
async def test_failure_before_a_streams_first_byte_is_answered_elsewhere(
    live: LiveGateway, hasty: LiveGateway, trust: ssl.SSLContext, way: Way, name: str
) -> None:
    gateway = hasty if "hangs" in name else live
    async with (
        engine(gateway, BEFORE_STREAM[name], preferred=True) as broken,
        engine(gateway, well) as good,
        client(gateway, way, trust) as caller,
    ):
        await caller.send(post(STREAM_BODY))
        answer = await caller.answer()
        assert answer.status == 200 and answer.body.endswith(sse.DONE)
        assert answer.headers["x-shoal-replica"] == good.name
        assert len(broken.served) == len(good.served) == 1
        assert (
            broken.served[0].head.lower().split(b"x-request-id")[1]
            == good.served[0].head.lower().split(b"x-request-id")[1]
        )
    assert await quiet(gateway)


@pytest.mark.parametrize("name", BEFORE_WHOLE)
async def test_failure_before_a_whole_answer_is_answered_elsewhere(
    live: LiveGateway, trust: ssl.SSLContext, way: Way, name: str
) -> None:
    async with (
        engine(live, BEFORE_WHOLE[name], preferred=True) as broken,
        engine(live, well) as good,
        client(live, way, trust) as caller,
    ):
        await caller.send(post(CHAT_BODY))
        assert (await caller.answer()).body == sse.whole("acme/bot", "you said hi")
        assert len(broken.served) == len(good.served) == 1
    assert await quiet(live)


async def begins(served: Served) -> None:
    await served.begin_stream()
    await served.event(sse.role(BOT_V1) + sse.token(BOT_V1, "so far"))
    await served.go_on.wait()  # the client has it: read together with a failure, it would not have been sent


async def mid_event(served: Served) -> None:
    await begins(served)
    await served.send(b"80\r\ndata: {")


async def mid_character(served: Served) -> None:
    await begins(served)
    event = sse.token(BOT_V1, "\U0001f41f")
    cut = event.index(b"\xf0") + 2
    await served.send(b"%x\r\n%b" % (len(event), event[:cut]))


async def ends_without_done(served: Served) -> None:
    await begins(served)
    await served.end_stream()


async def reports_an_error(served: Served) -> None:
    await begins(served)
    await served.event(sse.error() + sse.DONE)
    await served.end_stream()


async def hangs_on(served: Served) -> None:
    await begins(served)
    await served.until_dropped()


async def grows_an_event(served: Served) -> None:
    await begins(served)
    await served.event(b"data: " + b"x" * 2_000_000)


async def breaks_its_framing(served: Served) -> None:
    await begins(served)
    await served.send(b"nonsense\r\n")


AFTER = {
    "dies between events": then_dies(begins),
    "dies in an event": then_dies(mid_event),
    "dies in a character": then_dies(mid_character),
    "ends without [DONE]": ends_without_done,
    "reports an error": reports_an_error,
    "hangs": hangs_on,
    "an event of 2 MB": grows_an_event,
    "broken chunks": then_dies(breaks_its_framing),
}


@pytest.mark.parametrize("name", AFTER)
async def test_failure_after_the_first_byte_ends_the_stream_with_an_error(
    live: LiveGateway, hasty: LiveGateway, trust: ssl.SSLContext, way: Way, name: str
) -> None:
    gateway = hasty if "hangs" in name else live
    async with (
        engine(gateway, AFTER[name], preferred=True) as broken,
        engine(gateway) as good,
        client(gateway, way, trust) as caller,
    ):
        await caller.send(post(STREAM_BODY))
        await caller.until(b"so far")
        broken.served[0].go_on.set()
        answer = await caller.answer()
        assert answer.complete and answer.status == 200
        assert answer.body.startswith(sse.role("acme/bot") + sse.token("acme/bot", "so far"))
        last = answer.body.split(b"\n\n")[-2]
        assert last.startswith(b'data: {"error":{') and b"[DONE]" not in answer.body
        assert answer.body.count(b"so far") == 1 and good.served == [], "never begun again"
        await caller.send(post())
        assert (await caller.answer()).status == 200, "the connection is still good"
    assert await quiet(gateway)


async def test_failure_of_every_replica_is_answered_once(live: LiveGateway, trust: ssl.SSLContext, way: Way) -> None:
    async with (
        engine(live, raw(b"")) as first,
        engine(live, raw(b"")) as second,
        client(live, way, trust) as caller,
    ):
        await caller.send(post(STREAM_BODY))
        answer = await caller.answer()
        assert (answer.status, answer.code) == (502, "upstream_failed")
        assert len(first.served) == len(second.served) == 1
    assert await quiet(live)


async def test_closed_port_is_answered_by_another_replica(live: LiveGateway, trust: ssl.SSLContext, way: Way) -> None:
    async with engine(live, preferred=True) as gone, engine(live) as good, client(live, way, trust) as caller:
        with socket.socket() as silent:  # holds the port, so that no other process listens there
            silent.bind(("127.0.0.1", 0))
            live.beat(gone.name, silent.getsockname()[1], prefill_ms_per_token=0.0, service_ms=0.0)
            await caller.send(post())
            assert (await caller.answer()).headers["x-shoal-replica"] == good.name


@pytest.mark.parametrize("body", [STREAM_BODY, CHAT_BODY], ids=["stream", "whole"])
async def test_unusual_but_valid_answers_are_accepted(
    live: LiveGateway, trust: ssl.SSLContext, way: Way, body: bytes
) -> None:
    async def hints(served: Served) -> None:
        await served.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
        await well(served)

    async with engine(live, hints) as played, client(live, way, trust) as caller:
        for _ in range(2):
            await caller.send(post(body))
            assert (await caller.answer()).status == 200
        assert len({served.writer for served in played.served}) == 1


async def test_engine_that_closes_after_each_answer_is_redialled(
    live: LiveGateway, trust: ssl.SSLContext, way: Way
) -> None:
    async def closes(served: Served) -> None:
        await served.answer(WHOLE, extra="connection: close\r\n")
        served.writer.close()

    async with engine(live, closes) as played, client(live, way, trust) as caller:
        for _ in range(3):
            await caller.send(post())
            assert (await caller.answer()).status == 200
        assert len({served.writer for served in played.served}) == 3


async def test_garbage_after_an_answer_reaches_no_client(live: LiveGateway, trust: ssl.SSLContext, way: Way) -> None:
    async def surplus(served: Served) -> None:
        secret = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 8\r\n\r\n"secret"'
        head = b"content-length: %d\r\n\r\n" % len(WHOLE)
        await served.send(JSON + head + WHOLE + secret)
        await served.until_dropped()

    async with engine(live, surplus) as played, client(live, way, trust) as caller:
        for _ in range(3):
            await caller.send(post())
            answer = await caller.answer()
            assert answer.body == sse.whole("acme/bot", "you said hi")
        assert len({served.writer for served in played.served}) == 3


async def test_stream_in_single_bytes_is_relayed(live: LiveGateway, trust: ssl.SSLContext, way: Way) -> None:
    """Some chunk ends inside a character, a searched string or a chunk size."""
    events = sse.role(BOT_V1) + sse.token(BOT_V1, "\u00e9\U0001f41f") + sse.usage(BOT_V1) + sse.DONE

    async def dribbles(served: Served) -> None:
        await served.begin_stream()
        for number, byte in enumerate(events):
            await served.event(bytes([byte]))
            if number % 50 == 0:
                await asyncio.sleep(0)
        await served.end_stream()

    async with engine(live, dribbles), client(live, way, trust) as caller:
        await caller.send(post(STREAM_BODY))
        assert (await caller.answer()).body == sse.role("acme/bot") + sse.token(
            "acme/bot", "\u00e9\U0001f41f"
        ) + sse.DONE


async def test_request_moves_when_its_replica_is_reported_hung(
    live: LiveGateway, trust: ssl.SSLContext, way: Way
) -> None:
    """The replica accepts and stays silent, and the timeouts are long: only the heartbeat reveals it."""
    async with (
        engine(live, hanging(), preferred=True) as hung,
        engine(live) as good,
        client(live, way, trust) as caller,
    ):
        await caller.send(post(CHAT_BODY))
        while not hung.served:
            await asyncio.sleep(0.01)
        live.beat(hung.name, hung.port, phase="hung")
        assert (await caller.answer()).headers["x-shoal-replica"] == good.name
    assert await quiet(live)
