"""Process status texts in `shoal status`, and probes that are cut short."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random

import psutil
import pytest

from functions.controller.local.probes import ProcessProber, answer_text
from functions.controller.local.spec import HttpProbe


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ('{"phase": "dead", "reason": "refused", "adapters": [], "not_ready": "dead: refused"}', "dead: refused"),
        ('{"phase": "hung", "condemned": "hung for 90 s: silent"}', "hung for 90 s: silent"),
        ('{"status": "not ready", "reason": "no snapshot yet"}', "no snapshot yet"),
        ('{"not_ready": "", "reason": "draining"}', "draining"),
        ('{"reason": {"a": 1}}', '{"reason": {"a": 1}}'),
        ("[1]", "[1]"),
        ("Service\n Unavailable", "Service Unavailable"),
        ("[" * 100_000, "[" * 300),
        ("", ""),
    ],
)
def test_status_text_is_the_reason_alone(answer: str, line: str) -> None:
    assert answer_text(answer) == line


async def test_probes_that_are_cut_short_leave_nothing_behind() -> None:
    """On a full machine, probes end while they connect; after the hundredth the prober got no answer any more."""
    async with _healthy() as url:
        prober, rng = ProcessProber(timeout_s=0.01), Random(1)
        stalling = asyncio.create_task(_stall(rng))
        for _ in range(100):
            await asyncio.gather(*(prober.probe(HttpProbe(url)) for _ in range(3)))
        stalling.cancel()
        before = _open_sockets()
        await asyncio.sleep(0.2)
        assert _open_sockets() <= before
        assert _open_sockets() < 10, "those of this process: the listener, and what the loop itself has"
        assert (await ProcessProber().probe(HttpProbe(url))).ok


async def test_process_that_answered_during_a_stall_is_healthy() -> None:
    """Two late probes, half a minute apart, got a healthy process killed."""
    async with _healthy() as url:
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, time.sleep, 0.5)
        loop.call_soon(time.sleep, 0.1)
        assert (await ProcessProber(timeout_s=0.3).probe(HttpProbe(url))).ok


def _open_sockets() -> int:
    return len(psutil.Process().net_connections("tcp"))


async def _stall(rng: Random) -> None:
    while True:
        time.sleep(rng.uniform(0.0, 0.012))  # the loop stalls, as on a machine where processes wait for the processor
        await asyncio.sleep(rng.uniform(0.0, 0.002))


@asynccontextmanager
async def _healthy() -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/healthz"
