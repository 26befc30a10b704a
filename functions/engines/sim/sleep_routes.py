"""POST /sleep, POST /wake_up, GET /is_sleeping; there only with VLLM_SERVER_DEV_MODE=1.

Requests that come meanwhile are taken and wait; /health, /metrics and /v1/models answer as ever.
"""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import JSONResponse, Response

from functions.engines.sim.parts import Parts
from functions.engines.sim.slumber import Level, Mode


def sleep_routes(parts: Parts) -> APIRouter:
    router = APIRouter()
    engine, clock = parts.engine, parts.clock
    turn = asyncio.Lock()  # the engine does one such thing after the other

    @router.post("/sleep")
    async def sleep(level: Annotated[int, Query(ge=0, le=2)] = 1, mode: Annotated[Mode, Query()] = "abort") -> Response:
        async with turn:
            depth: Level = _LEVELS[level]
            await engine.sleep(depth, mode)
        return JSONResponse({"status": "sleeping", "level": level})

    @router.post("/wake_up")
    async def wake_up(tags: Annotated[list[str] | None, Query()] = None) -> Response:
        async with turn:
            if engine.slumber.brings_weights(tags):
                await clock.sleep_until(clock.now_s() + parts.settings.wake_s)
            engine.wake_up(tags)
        is_awake = engine.slumber.level is None
        return JSONResponse({"status": "awake" if is_awake else "sleeping", "tags": tags})

    @router.get("/is_sleeping")
    async def is_sleeping() -> Response:
        return JSONResponse({"is_sleeping": engine.slumber.level is not None})

    return router


_LEVELS: tuple[Level, ...] = (0, 1, 2)
