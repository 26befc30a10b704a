"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter; there only when VLLM_ALLOW_RUNTIME_LORA_UPDATING says so."""

import asyncio
from collections import defaultdict
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.responses import JSONResponse, Response

from functions.engines.sim.guards import json_only
from functions.engines.sim.parts import Parts
from functions.engines.sim.protocol import LoadAdapterBody, UnloadAdapterBody
from functions.engines.sim.refusals import adapter_broken
from functions.engines.sim.slumber import Level, Mode


def adapter_routes(parts: Parts) -> APIRouter:
    router = APIRouter(dependencies=[Depends(json_only)])
    busy: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @router.post("/v1/load_lora_adapter")
    async def load(body: LoadAdapterBody) -> Response:
        async with busy[body.lora_name]:
            await load_adapter(parts, body.lora_name, body.lora_path, in_place=body.load_inplace)
        return Response(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    @router.post("/v1/unload_lora_adapter")
    async def unload(body: UnloadAdapterBody) -> Response:
        async with busy[body.lora_name]:
            parts.adapters.forget(body.lora_name)
        return Response(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    return router


async def load_adapter(parts: Parts, name: str, path: str, *, in_place: bool = False) -> None:
    """Hot when it returns. Raises Refusal."""
    adapter = parts.adapters.read(name, path, in_place=in_place)
    if not parts.settings.enable_lora:
        raise adapter_broken("LoRA is not enabled. Use --enable-lora to enable LoRA.")
    await parts.engine.load_adapter(adapter)
    parts.adapters.register(adapter)


# POST /sleep, POST /wake_up, GET /is_sleeping; there only with VLLM_SERVER_DEV_MODE=1.
#
# Requests that come meanwhile are taken and wait; /health, /metrics and /v1/models answer as ever.


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
