"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter; there only when VLLM_ALLOW_RUNTIME_LORA_UPDATING says so."""

import asyncio
from collections import defaultdict

from fastapi import APIRouter, Depends
from starlette.responses import Response

from functions.engines.sim.guards import json_only
from functions.engines.sim.parts import Parts
from functions.engines.sim.protocol import LoadAdapterBody, UnloadAdapterBody
from functions.engines.sim.refusals import adapter_broken


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
