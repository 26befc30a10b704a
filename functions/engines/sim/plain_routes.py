"""Routes that generate nothing.

They serve health, version, load, models, metrics, tokenize, detokenize and the fault switches. Adapters can be loaded
and unloaded if VLLM_ALLOW_RUNTIME_LORA_UPDATING is set. The engine can sleep with VLLM_SERVER_DEV_MODE=1: requests
that arrive meanwhile are accepted and wait, while /health, /metrics and /v1/models answer as usual.
"""

import asyncio
from collections import defaultdict
from typing import Annotated, Any
from uuid import uuid4

import msgspec
import orjson
from fastapi import APIRouter, Depends, Query, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError
from starlette.responses import JSONResponse, Response

from functions.engines.sim.accept import to_chat_messages
from functions.engines.sim.guards import json_only
from functions.engines.sim.kv_transfer import READ_PATH
from functions.engines.sim.lifecycle import Level, Mode, Phase
from functions.engines.sim.parts import EngineParts
from functions.engines.sim.protocol import (
    DetokenizeBody,
    LoadAdapterBody,
    TokenizeChatBody,
    TokenizeCompletionBody,
    UnloadAdapterBody,
)
from functions.engines.sim.refusals import adapter_broken

VLLM_VERSION = "0.32.0"


def status_routes(parts: EngineParts) -> APIRouter:
    router = APIRouter()

    async def health() -> Response:
        alive = parts.lifecycle.phase is not Phase.DEAD
        return Response(status_code=200 if alive else 503)

    router.add_api_route("/health", health, methods=["GET"])
    router.add_api_route("/ping", health, methods=["GET", "POST"])

    @router.get("/version")
    async def version() -> Response:
        return JSONResponse({"version": VLLM_VERSION})

    @router.get("/load")
    async def load() -> Response:
        return JSONResponse({"server_load": 0})

    @router.get("/kv_event_sources")
    async def kv_event_sources() -> Response:
        config = parts.settings.kv_events
        return JSONResponse({"0": msgspec.to_builtins(config)} if config.is_on else {})

    @router.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": _model_cards(parts)})

    @router.get("/metrics")
    async def metrics() -> Response:
        content = generate_latest(parts.registry)
        return Response(content, headers={"content-type": CONTENT_TYPE_LATEST})

    return router


def tokenizer_routes(parts: EngineParts) -> APIRouter:
    router = APIRouter(dependencies=[Depends(json_only)])
    tokenizer = parts.model.tokenizer

    @router.post("/tokenize")
    async def tokenize(body: TokenizeCompletionBody | TokenizeChatBody) -> Response:
        parts.acceptor.find_model(body.model)
        ids = tokenizer.encode(_text_of(parts, body), add_special_tokens=body.add_special_tokens)
        limit = parts.settings.limits.max_model_len_tokens
        names = tokenizer.names(ids) if body.return_token_strs else None
        return JSONResponse({"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": names})

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> Response:
        parts.acceptor.find_model(body.model)
        return JSONResponse({"prompt": tokenizer.decode(body.tokens, skip_special_tokens=False)})

    return router


def fault_routes(parts: EngineParts) -> APIRouter:
    router = APIRouter()

    @router.get("/sim/faults")
    async def show() -> Response:
        return JSONResponse(parts.faults.now.model_dump(mode="json"))

    @router.get("/sim/adapters")
    async def adapters() -> Response:
        core = parts.engine.core
        return JSONResponse(
            {
                "in_slots": len(core.tiers.in_slots),
                "in_host": len(core.tiers.in_host),
                "requests_by_tier": {tier: core.stats.adapter_uses[tier] for tier in ("slot", "host", "disk")},
            }
        )

    @router.post(READ_PATH)
    async def give_blocks(request: Request) -> Response:
        """Release a prompt's held blocks and, after the transfer's time, answer with their number of tokens: the side
        channel of `kv_transfer`."""
        asked = orjson.loads(await request.body() or b"{}")
        is_ours = type(asked) is dict and asked.get("engine_id") == parts.kv_transfers.engine_id
        name = str(asked.get("request_id")) if is_ours else ""
        tokens = parts.engine.core.scheduler.held.read(name, parts.clock.now_s())
        if not tokens or parts.faults.now.lose_kv_blocks:
            return JSONResponse({"error": "unknown or expired blocks"}, status_code=404)
        await parts.clock.sleep_until(parts.clock.now_s() + parts.kv_transfers.link.transfer_s(tokens))
        return JSONResponse({"tokens": tokens})

    @router.post("/sim/faults")
    async def change(request: Request) -> Response:
        try:
            changed = parts.faults.merge(orjson.loads(await request.body() or b"{}"))
        except (ValidationError, orjson.JSONDecodeError, TypeError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        parts.engine.apply_faults()
        return JSONResponse(changed.model_dump(mode="json"))

    return router


def _text_of(parts: EngineParts, body: TokenizeCompletionBody | TokenizeChatBody) -> str:
    if isinstance(body, TokenizeCompletionBody):
        return body.prompt
    messages = to_chat_messages(body.messages)
    return parts.acceptor.render(messages, add_generation_prompt=body.add_generation_prompt, tools=body.tools)


def _model_cards(parts: EngineParts) -> list[dict[str, Any]]:
    created_s = int(parts.clock.wall_s())
    limit = parts.settings.limits.max_model_len_tokens
    base = [_card(name, parts.model.root, None, limit, created_s) for name in parts.model.names]
    parent = parts.model.names[0]
    return base + [_card(adapter.name, adapter.path, parent, None, created_s) for adapter in parts.adapters]


def _card(name: str, root: str, parent: str | None, max_model_len: int | None, created_s: int) -> dict[str, Any]:
    permission = {
        "id": f"modelperm-{uuid4().hex[:16]}",
        "object": "model_permission",
        "created": created_s,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": created_s,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [permission],
    }


def adapter_routes(parts: EngineParts) -> APIRouter:
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


async def load_adapter(parts: EngineParts, name: str, path: str, *, in_place: bool = False) -> None:
    """Load and register an adapter; it is in a slot on return. Raise EngineRefusal if that fails."""
    adapter = parts.adapters.read(name, path, in_place=in_place)
    if not parts.settings.enable_lora:
        raise adapter_broken("LoRA is not enabled. Use --enable-lora to enable LoRA.")
    await parts.engine.load_adapter(adapter)
    parts.adapters.register(adapter)


def sleep_routes(parts: EngineParts) -> APIRouter:
    router = APIRouter()
    engine, clock = parts.engine, parts.clock
    turn = asyncio.Lock()  # serializes sleep and wake-up

    @router.post("/sleep")
    async def sleep(level: Annotated[int, Query(ge=0, le=2)] = 1, mode: Annotated[Mode, Query()] = "abort") -> Response:
        async with turn:
            depth: Level = _LEVELS[level]
            await engine.sleep(depth, mode)
        return JSONResponse({"status": "sleeping", "level": level})

    @router.post("/wake_up")
    async def wake_up(tags: Annotated[list[str] | None, Query()] = None) -> Response:
        async with turn:
            if engine.slumber.reloads_weights(tags):
                await clock.sleep_until(clock.now_s() + parts.settings.wake_s)
            engine.wake_up(tags)
        is_awake = engine.slumber.level is None
        return JSONResponse({"status": "awake" if is_awake else "sleeping", "tags": tags})

    @router.get("/is_sleeping")
    async def is_sleeping() -> Response:
        return JSONResponse({"is_sleeping": engine.slumber.level is not None})

    return router


_LEVELS: tuple[Level, ...] = (0, 1, 2)
