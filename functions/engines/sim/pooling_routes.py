"""POST /v1/embeddings, /classify, /score and /rerank, as `vllm serve --runner pooling` answers them.

A pooling prompt is scheduled and cached as any prompt and takes as long; the one token that the scheduler then emits
is discarded. The model determines the routes: an embedding model scores by cosine, a classifier classifies, a cross
encoder scores.
"""

import base64
import struct
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from functions.engines.sim import pooling
from functions.engines.sim.accept import Prompt, ReplyChoice, Work, to_chat_messages
from functions.engines.sim.blocks import CacheScope
from functions.engines.sim.bodies import plain_usage
from functions.engines.sim.guards import json_only
from functions.engines.sim.model import Adapter
from functions.engines.sim.parts import EngineParts
from functions.engines.sim.pooling import (
    EmbeddingsBody,
    InputBody,
    PoolingBody,
    RerankBody,
    ScoreBody,
    Scored,
)
from functions.engines.sim.refusals import invalid
from functions.engines.sim.reply import ReplyPlan
from functions.engines.sim.whole import generate_whole

Answer = Callable[[int], dict[str, Any]]  # prompt tokens -> body


def pooling_routes(parts: EngineParts) -> APIRouter:
    """Return the routes of the pooling task that this engine was started for; an `embed` engine also has those that
    score."""
    router = APIRouter(dependencies=[Depends(json_only)])
    task = parts.settings.task
    if task == "embed":
        _add_embeddings(router, parts)
    if task == "classify":
        _add_classify(router, parts)
    if task in ("embed", "score"):
        _add_scores(router, parts)
    return router


def _add_embeddings(router: APIRouter, parts: EngineParts) -> None:
    @router.post("/v1/embeddings")
    async def embeddings(body: EmbeddingsBody, request: Request) -> Response:
        adapter = parts.acceptor.find_model(body.model)
        dimensions = _dimensions(parts, body.dimensions)
        prompts = _prompts(parts, body)

        def answer(prompt_tokens: int) -> dict[str, Any]:
            vectors = [_vector(parts, prompt, adapter, dimensions) for prompt in prompts]
            data = [
                {"index": index, "object": "embedding", "embedding": _encoded(vector, body.encoding_format)}
                for index, vector in enumerate(vectors)
            ]
            return _listed(parts, "embd", adapter, data, prompt_tokens)

        return await _pooled(parts, request, body, adapter, prompts, answer)


def _add_classify(router: APIRouter, parts: EngineParts) -> None:
    @router.post("/classify")
    async def classify(body: InputBody, request: Request) -> Response:
        adapter = parts.acceptor.find_model(body.model)
        prompts = _prompts(parts, body)

        def answer(prompt_tokens: int) -> dict[str, Any]:
            data = []
            for index, prompt in enumerate(prompts):
                probs = pooling.classify(prompt.ids, mark=_mark(adapter))
                label = pooling.LABELS[probs.index(max(probs))]
                data.append({"index": index, "label": label, "probs": probs, "num_classes": len(probs)})
            return _listed(parts, "classify", adapter, data, prompt_tokens)

        return await _pooled(parts, request, body, adapter, prompts, answer)


def _add_scores(router: APIRouter, parts: EngineParts) -> None:
    async def score(body: ScoreBody, request: Request) -> Response:
        adapter = parts.acceptor.find_model(body.model)
        first = _texts(body.queries or body.text_1 or body.data_1)
        second = _texts(body.documents or body.items or body.text_2 or body.data_2)
        if len(first) not in (1, len(second)):
            raise invalid("Input lengths must be either 1:1, 1:N or N:N")
        pairs = _pairs(parts, body, first * len(second) if len(first) == 1 else first, second)

        def answer(prompt_tokens: int) -> dict[str, Any]:
            scores = [_score(parts, *pair, adapter) for pair in pairs]
            data = [{"index": index, "object": "score", "score": value} for index, value in enumerate(scores)]
            return _listed(parts, "score", adapter, data, prompt_tokens)

        return await _pooled(parts, request, body, adapter, _joined(pairs), answer)

    async def rerank(body: RerankBody, request: Request) -> Response:
        adapter = parts.acceptor.find_model(body.model)
        documents = _texts(body.documents)
        pairs = _pairs(parts, body, _texts(body.query) * len(documents), documents)

        def answer(prompt_tokens: int) -> dict[str, Any]:
            scored = [(_score(parts, *pair, adapter), index) for index, pair in enumerate(pairs)]
            ranked = sorted(scored, key=lambda found: -found[0])[: body.top_n or len(scored)]
            results = [
                {"index": index, "document": {"text": documents[index], "multi_modal": None}, "relevance_score": value}
                for value, index in ranked
            ]
            usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
            return {"id": _id("score"), "model": _served(parts, adapter), "usage": usage, "results": results}

        return await _pooled(parts, request, body, adapter, _joined(pairs), answer)

    for path in ("/score", "/v1/score"):
        router.add_api_route(path, score, methods=["POST"])
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        router.add_api_route(path, rerank, methods=["POST"])


async def _pooled(  # noqa: PLR0917 - one pooled request is these six things
    parts: EngineParts,
    request: Request,
    body: PoolingBody,
    adapter: Adapter | None,
    prompts: Sequence[Prompt],
    answer: Answer,
) -> Response:
    parts.engine.check_admission(len(prompts))
    read = ReplyPlan(
        ids=(parts.model.tokenizer.eos_id,), deltas=("",), pieces=("",), finish_reason="stop", stop_reason=None
    )
    scope = CacheScope(adapter.name, adapter.path, body.cache_salt) if adapter else CacheScope(salt=body.cache_salt)
    work = Work(
        model=_served(parts, adapter),
        adapter=adapter,
        scope=scope,
        priority=body.priority,
        max_tokens=1,
        n=1,
        prompts=tuple(prompts),
        choices=tuple(ReplyChoice(index, prompt, read) for index, prompt in enumerate(prompts)),
    )
    faults = parts.faults.draw_for_request(work.model)
    return await generate_whole(request, parts.engine, work, lambda _: answer(work.prompt_tokens), faults)


def _prompts(parts: EngineParts, body: InputBody) -> list[Prompt]:
    if body.messages is not None:
        text = parts.acceptor.render(to_chat_messages(body.messages), add_generation_prompt=False, tools=None)
        return [parts.acceptor.prompt_of(text, body.truncate_prompt_tokens)]
    given = body.input
    if not given:
        raise invalid("Either input or messages must be given.", param="input")
    several: list[Any] = [given] if isinstance(given, str) or isinstance(given[0], int) else list(given)
    return [parts.acceptor.prompt_of(each, body.truncate_prompt_tokens) for each in several]


def _pairs(parts: EngineParts, body: PoolingBody, first: list[str], second: list[str]) -> list[tuple[Prompt, Prompt]]:
    prompt_of, cut = parts.acceptor.prompt_of, body.truncate_prompt_tokens
    return [(prompt_of(one, cut), prompt_of(other, cut)) for one, other in zip(first, second, strict=True)]


def _joined(pairs: Sequence[tuple[Prompt, Prompt]]) -> list[Prompt]:
    return [Prompt([*one.ids, *other.ids], f"{one.text}\n{other.text}") for one, other in pairs]


def _texts(given: Scored | list[Scored] | None) -> list[str]:
    if not given:
        raise invalid("Both sides of a score must be given.")
    return [_text(item) for item in (given if isinstance(given, list) else [given])]


def _text(item: Scored) -> str:
    if isinstance(item, str):
        return item
    return "\n".join(str(part.get("text", "")) for part in item.get("content") or ())


def _score(parts: EngineParts, query: Prompt, document: Prompt, adapter: Adapter | None) -> float:
    if parts.settings.task == "score":
        return pooling.overlap(query.ids, document.ids)
    dimensions = parts.settings.embedding_dimensions
    return pooling.cosine(_vector(parts, query, adapter, dimensions), _vector(parts, document, adapter, dimensions))


def _vector(parts: EngineParts, prompt: Prompt, adapter: Adapter | None, dimensions: int) -> list[float]:
    whole = pooling.embed(prompt.ids, dimensions=parts.settings.embedding_dimensions, mark=_mark(adapter))
    return whole if dimensions == len(whole) else pooling.normalised(whole[:dimensions])


def _dimensions(parts: EngineParts, wanted: int | None) -> int:
    most = parts.settings.embedding_dimensions
    if wanted is not None and not 1 <= wanted <= most:
        raise invalid(f"dimensions must be between 1 and {most}.", param="dimensions", value=wanted)
    return wanted or most


def _encoded(vector: list[float], encoding: str) -> list[float] | str:
    """Return the vector unchanged for `float`, else as base64 of little-endian float32, as OpenAI's clients expect."""
    return vector if encoding == "float" else base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _listed(
    parts: EngineParts, kind: str, adapter: Adapter | None, data: list[dict[str, Any]], prompt_tokens: int
) -> dict[str, Any]:
    return {
        "id": _id(kind),
        "object": "list",
        "created": int(parts.clock.wall_s()),
        "model": _served(parts, adapter),
        "data": data,
        "usage": {**plain_usage(prompt_tokens, 0), "prompt_tokens_details": None},
    }


def _id(kind: str) -> str:
    return f"{kind}-{uuid4().hex[:16]}"


def _served(parts: EngineParts, adapter: Adapter | None) -> str:
    return adapter.name if adapter else parts.model.names[0]


def _mark(adapter: Adapter | None) -> str | None:
    return adapter.mark if adapter else None
