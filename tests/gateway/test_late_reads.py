"""A gateway whose loop stalls longer than its timeouts, on real sockets: it reads before it judges peers as late.

Each scenario is in time except for the gateway's own stall, after which timers run before sockets are read.
"""

import asyncio
import socket
import ssl

import pytest

from tests.gateway import sse
from tests.gateway.client_rig import STREAM_BODY, post
from tests.gateway.live import PATIENCE_S, LiveClient, LiveGateway, Served, Way, client, engine, quiet, well

STILL_S = 2.0  # the timeouts are 1 s


@pytest.fixture(params=[Way("fast", False), Way("plain", False)], ids=str)
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


async def _until_paused(gateway: LiveGateway) -> None:
    """Wait until the gateway has noticed that the client does not read."""
    async with asyncio.timeout(PATIENCE_S):
        while not gateway.call(
            lambda: any(getattr(each, "_paused_at_s", None) for each in gateway.gateway.services.open_requests)
        ):
            await asyncio.sleep(0.01)


async def test_client_that_read_during_a_stall_is_not_cut_off(
    hasty: LiveGateway, trust: ssl.SSLContext, way: Way
) -> None:
    """The client stopped reading for a moment and read on while the gateway stalled, which did not know that yet."""

    async def flooding(served: Served) -> None:
        await served.begin_stream()
        await served.event(sse.role(served.model))
        while not served.go_on.is_set():
            await served.event(sse.token(served.model, "x" * 20_000))
        await served.event(sse.DONE)
        await served.end_stream()

    async with engine(hasty, flooding) as played, client(hasty, way, trust) as caller:
        caller.writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await caller.send(post(STREAM_BODY))
        await _until_paused(hasty)
        async with hasty.standing_still(STILL_S):
            caller.writer.transport.resume_reading()  # type: ignore[attr-defined]
            reading = asyncio.get_running_loop().create_task(_drained(caller))
            await asyncio.sleep(STILL_S / 2)
            assert not reading.done()
        played.served[0].go_on.set()
        assert (await reading).endswith(sse.DONE + b"\r\n0\r\n\r\n")
    assert await quiet(hasty)


async def _drained(caller: LiveClient) -> bytes:
    """Read to the end of the answer, however long it is, and return its last bytes."""
    last = b""
    async with asyncio.timeout(PATIENCE_S):
        while not last.endswith(b"\r\n0\r\n\r\n"):
            data = await caller.reader.read(1 << 20)
            assert data, "the connection ended inside the stream"
            last = (last + data)[-256:]
    return last


@pytest.mark.parametrize("begins", [True, False], ids=["in its stream", "before its first byte"])
async def test_engine_that_sent_during_a_stall_is_not_silent(
    hasty: LiveGateway, trust: ssl.SSLContext, way: Way, *, begins: bool
) -> None:
    async def slow(served: Served) -> None:
        await served.begin_stream()
        if begins:
            await served.event(sse.role(served.model) + sse.token(served.model, "you"))
        await served.go_on.wait()
        await served.event(sse.role(served.model) + sse.token(served.model, " said"))
        await served.event(sse.DONE)
        await served.end_stream()

    async with engine(hasty, slow) as played, client(hasty, way, trust) as caller:
        await caller.send(post(STREAM_BODY))
        async with asyncio.timeout(PATIENCE_S):
            while not played.served:
                await asyncio.sleep(0.01)
        if begins:
            await caller.until(b"you")
        async with hasty.standing_still(STILL_S):
            await asyncio.sleep(0.3)
            played.served[0].go_on.set()
        answer = await caller.answer()
        assert answer.status == 200 and answer.body.endswith(sse.DONE), answer.body
        assert len(played.served) == 1, "no second try beside it"
    assert await quiet(hasty)


@pytest.mark.parametrize("before", [0, 20, -5], ids=["all of it", "its head", "its body"])
async def test_request_that_arrived_during_a_stall_is_in_time(
    hasty: LiveGateway, trust: ssl.SSLContext, way: Way, before: int
) -> None:
    """The whole request or its rest arrives then: closing a connection with an unread request resets it."""
    async with engine(hasty, well), client(hasty, way, trust) as caller:
        await caller.send(post()[:before])
        await asyncio.sleep(0.2)  # nothing tells a client that its bytes were read
        async with hasty.standing_still(STILL_S):
            await caller.send(post()[before:])
        assert (await caller.answer()).status == 200


async def test_client_that_does_not_read_is_cut_off_after_a_stall(
    hasty: LiveGateway, trust: ssl.SSLContext, way: Way
) -> None:
    async def flooding(served: Served) -> None:
        await served.begin_stream()
        while True:
            await served.event(sse.token(served.model, "x" * 20_000))

    async with engine(hasty, flooding) as played, client(hasty, way, trust) as caller:
        caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await caller.send(post(STREAM_BODY))
        await _until_paused(hasty)
        async with hasty.standing_still(STILL_S):
            pass
        await played.dropped_within_s(0.0)
    assert await quiet(hasty)
