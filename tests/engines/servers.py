"""The simulated engine in this process: its parts on a test clock, and a server on a free port."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from functions.engines.sim.live import Clock
from functions.engines.sim.parts import EngineParts
from functions.engines.sim.server import EngineServer, assemble, bind
from functions.engines.sim.settings import read_settings


class FrozenClock:
    def now_s(self) -> float:
        return 0.0

    def wall_s(self) -> float:
        return 1_800_000_000.0

    async def sleep_until(self, when_s: float) -> None:
        await asyncio.sleep(0)


class SteppedClock(FrozenClock):
    """Clock that advances only by sleeping, so that a day of generation takes only its CPU time."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        return self._now_s

    async def sleep_until(self, when_s: float) -> None:
        self._now_s = max(self._now_s, when_s)
        await asyncio.sleep(0)


def assembled(clock: Clock, *flags: str, **environ: str) -> EngineParts:
    return assemble(read_settings(["--model", "sim", *flags], environ), clock)


@asynccontextmanager
async def serving(*flags: str, **environ: str) -> AsyncIterator[tuple[EngineParts, httpx.AsyncClient, int]]:
    """Run a server on a clock that advances only by sleeping; yield its parts, a client and its port."""
    parts = assembled(SteppedClock(), *flags, **environ)
    server = EngineServer(parts, handle_signals=False)
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.run_engine([listener]))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
            yield parts, http, port
        server.stop()


@asynccontextmanager
async def answering(answer: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client whose server is the function `answer(request) -> response`."""
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        yield client
