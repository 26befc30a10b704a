"""Helpers of the detour tests: additional pools, policies that lead to them, and answers with unsure tokens."""

from typing import Any

import orjson

from functions.api.ids import EngineName, ModelId, PoolName, TenantId
from functions.api.snapshot import (
    CascadeEntry,
    FallbackEntry,
    ModelEntry,
    PoolEntry,
    TenantEntry,
)
from tests.gateway import sse
from tests.gateway.engine_rig import Play
from tests.gateway.rig import BOT_V1, DIGEST_V1, POOL, heartbeat, routing, snapshot, version

LARGE, THIRD = PoolName("llama-8b"), PoolName("llama-70b")
NAMED_LARGE = EngineName(LARGE)


def pools(*, acme_may: tuple[str, ...] = (LARGE, THIRD), window_tokens: int = 2048, **sections: Any) -> dict[str, Any]:
    """Return the rig's sections with two more pools, whose base models acme may call."""
    small = snapshot()
    bases = tuple(
        ModelEntry(ModelId(name), name, "base", (version("v1", DIGEST_V1, name),), {"stable": "v1"})
        for name in (LARGE, THIRD)
    )
    return {
        "tenants": (
            TenantEntry(TenantId("acme"), "enterprise", ("acme/*", POOL, *acme_may)),
            *(tenant for tenant in small.tenants if tenant.name != "acme"),
        ),
        "models": tuple(sorted((*small.models, *bases), key=lambda model: model.id)),
        "pools": tuple(
            sorted(
                (*small.pools, *(PoolEntry(name, context_window_tokens=window_tokens) for name in (LARGE, THIRD))),
                key=lambda pool: pool.name,
            )
        ),
        **sections,
    }


def falls_back(*steps: FallbackEntry, **sections: Any) -> dict[str, Any]:
    chosen = steps or (FallbackEntry("unavailable", POOL, LARGE), FallbackEntry("saturated", POOL, LARGE))
    return pools(routing=(routing(fallback=chosen),), **sections)


def with_large(p: Play, *names: str, pool: PoolName = LARGE) -> Play:
    for name in names or ("big0",):
        p.gateway.receive_heartbeat(heartbeat(name, pool=pool, adapters=()))
    return p


def goes(p: Play, replica: str = "r0") -> None:
    p.gateway.receive_heartbeat(heartbeat(replica, sequence=2, phase="dead"))


def figure(p: Play, name: str, **labels: str) -> float:
    p.rig.gauges.scrape()
    return p.gateway.services.metrics.registry.get_sample_value(name, labels) or 0.0


def cascades(threshold_nats: float, tokens: int = 2) -> dict[str, Any]:
    step = CascadeEntry(POOL, LARGE, threshold_nats=threshold_nats, sample_tokens=tokens)
    return pools(routing=(routing(cascade=(step,)),))


def scored(text: str, *logprobs: float) -> bytes:
    entry = {
        "token": text,
        "logprob": logprobs[0],
        "top_logprobs": [{"token": "x", "logprob": one} for one in logprobs],
    }
    choice = {"index": 0, "delta": {"content": text}, "logprobs": {"content": [entry]}, "finish_reason": None}
    return sse.event({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": BOT_V1, "choices": [choice]})


SURE, UNSURE = (-0.001,), (-1.1, -1.2, -1.3)


def hedged(**changes: Any) -> dict[str, Any]:
    return {"routing": (routing(hedge_after_s=0.5, **changes),)}


def merged_models(sections: dict[str, Any]) -> Any:
    models = {model.id: model for model in (*pools()["models"], *sections["models"])}
    return tuple(models[name] for name in sorted(models))


def counted(content: str, *logprobs: float, prompt: int = 7, completion: int = 0) -> bytes:
    """Return a scored chunk that also has the engine's token count so far."""
    count = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return sse.event(orjson.loads(scored(content, *logprobs)[len(b"data: ") :]) | {"usage": count})


def settled(p: Play) -> tuple[int, int]:
    """Return the prompt and answer tokens that tenants were charged."""
    quotas = p.gateway.services.quotas
    both = (quotas.settled_by_engine, quotas.settled_by_count)
    return sum(each.input_tokens for each in both), sum(each.output_tokens for each in both)


async def escalated(p: Play) -> Any:
    p.ask()
    small = await p.connects()
    assert small.requests[0]["stream_options"]["continuous_usage_stats"] is True
    small.begins_stream()
    small.streams(sse.role(BOT_V1), counted("er", *UNSURE, completion=1), counted("m", *UNSURE, completion=2))
    return await p.connects()
