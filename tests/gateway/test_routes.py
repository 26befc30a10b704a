"""Routes: every route through admission and an exchange, with a played engine."""

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import orjson
import pytest

from functions.api.snapshot import PoolEntry, Task
from functions.gateway.intake import routes
from functions.gateway.intake.routes import (
    CHAT,
    CLASSIFY,
    COMPLETIONS,
    COUNT_TOKENS,
    DETOKENIZE,
    EMBEDDINGS,
    MESSAGES,
    RERANK,
    RESPONSES_ROUTE,
    ROUTES,
    SCORE,
    TOKENIZE,
    Route,
)
from functions.gateway.request.answers import Usage
from tests.gateway import rig
from tests.gateway.engine_rig import Client, Engine, Play
from tests.gateway.rig import BOT_V1, POOL, headers
from tests.gateway.sse import compact
from tests.gateway.test_dialects import MESSAGE_STREAM, RESPONSE_STREAM

MakePlay = Callable[..., Play]
CHAT_LIKE = [{"role": "user", "content": "hi"}]
BODIES: dict[Route, dict[str, Any]] = {
    RESPONSES_ROUTE: {"input": "hi"},
    MESSAGES: {"messages": CHAT_LIKE, "max_tokens": 16},
    COUNT_TOKENS: {"messages": CHAT_LIKE},
    EMBEDDINGS: {"input": ["hi", "there"]},
    CLASSIFY: {"input": "hi"},
    SCORE: {"queries": "hi", "documents": ["there", "hi"]},
    RERANK: {"query": "hi", "documents": ["there", "hi"]},
}
POOLED: list[tuple[Route, Task]] = [(EMBEDDINGS, "embed"), (CLASSIFY, "classify"), (SCORE, "embed"), (RERANK, "score")]


def of_task(task: Task) -> dict[str, Any]:
    return {"pools": (PoolEntry(POOL, 2048, task=task),)}


def send_request(play: Play, route: Route, **fields: Any) -> None:
    """Send a request like `Play.ask`, for bodies of every shape."""
    more = {name.removeprefix("header_"): fields.pop(name) for name in list(fields) if name.startswith("header_")}
    body = compact({"model": "acme/bot", **BODIES[route], **fields})
    play.client = Client()
    play.gateway.handle(route, headers(**more), body, play.client, play.rig.clock())


async def answered(play: Play, route: Route, content: dict[str, Any], **fields: Any) -> Engine:
    send_request(play, route, **fields)
    assert play.client.status is None, play.client.body
    engine = await play.connects()
    engine.answers(200, compact(content))
    return engine


@pytest.mark.parametrize(("route", "task"), POOLED, ids=[route.path for route, _ in POOLED])
async def test_pooling_answer_passes_and_is_counted(play: MakePlay, route: Route, task: Task) -> None:
    it = play("r0", **of_task(task))
    content = {"model": BOT_V1, "data": [{"index": 0, "embedding": [0.25, 0.5]}], "usage": {"prompt_tokens": 7}}
    engine = await answered(it, route, content)
    assert orjson.loads(it.client.body) == content | {"model": "acme/bot"}
    assert it.client.status == 200 and it.quiet()
    assert bytes(engine.transport.written).startswith(b"POST %b HTTP/1.1\r\n" % route.upstream_path)
    sent = engine.requests[0]
    assert sent["model"] == BOT_V1 and sent["cache_salt"] and "stream_options" not in sent


@pytest.mark.parametrize(("route", "task"), POOLED, ids=[route.path for route, _ in POOLED])
async def test_model_of_another_task_names_its_routes(play: MakePlay, route: Route, task: Task) -> None:
    it = play("r0")
    send_request(it, route)
    assert it.client.status == 400 and it.client.error["code"] == "wrong_model_type"
    assert "/v1/chat/completions" in it.client.error["message"] and it.client.error["param"] == "model"
    pooling = play("r0", **of_task(task))
    send_request(pooling, RESPONSES_ROUTE)
    assert pooling.client.status == 400 and route.path in pooling.client.error["message"]


async def test_pooling_reserves_no_output(play: MakePlay) -> None:
    it = play("r0", **of_task("embed"))
    send_request(it, EMBEDDINGS)
    exchange = next(iter(it.gateway.services.open_requests))
    assert exchange.admitted.features.max_output_tokens == exchange.admitted.features.expected_output_tokens == 0
    assert exchange.admitted.features.prompt_tokens > 0


@pytest.mark.parametrize(
    ("route", "events", "usage"),
    [(RESPONSES_ROUTE, RESPONSE_STREAM, Usage(12, 2, 8)), (MESSAGES, MESSAGE_STREAM, Usage(128, 2, 90))],
    ids=["responses", "messages"],
)
async def test_a_stream_of_named_events(play: MakePlay, route: Route, events: list[bytes], usage: Usage) -> None:
    it = play("r0")
    send_request(it, route, stream=True)
    exchange = next(iter(it.gateway.services.open_requests))
    engine = await it.connects()
    assert "stream_options" not in engine.requests[0]
    engine.begins_stream()
    engine.streams(*(event.replace(b"acme/bot@sha256-ab", BOT_V1.encode()) for event in events))
    engine.ends_stream()
    assert it.client.ended and it.client.status == 200
    assert it.client.body == b"".join(events).replace(b"acme/bot@sha256-ab", b"acme/bot")
    assert exchange.usage == usage and it.quiet()


@pytest.mark.parametrize(("route", "events"), [(RESPONSES_ROUTE, RESPONSE_STREAM), (MESSAGES, MESSAGE_STREAM)])
async def test_stream_lost_before_text_is_retried(play: MakePlay, route: Route, events: list[bytes]) -> None:
    it = play("r0", "r1")
    send_request(it, route, stream=True)
    first = await it.connects()
    first.begins_stream()
    first.streams(*events[:2])
    assert it.client.status is None
    first.dies()
    second = await it.connects()
    second.begins_stream()
    second.streams(*events)
    second.ends_stream()
    assert it.client.status == 200 and it.client.ended and it.client.body.count(b"event: " + events[0][7:20]) == 1


@pytest.mark.parametrize(("route", "events"), [(RESPONSES_ROUTE, RESPONSE_STREAM), (MESSAGES, MESSAGE_STREAM)])
async def test_a_lost_stream_ends_with_an_error_of_its_dialect(
    play: MakePlay, route: Route, events: list[bytes]
) -> None:
    it = play("r0")
    send_request(it, route, stream=True)
    engine = await it.connects()
    engine.begins_stream()
    engine.streams(*events[:5])
    engine.dies()
    last = it.client.body.split(b"\n\n")[-2]
    assert last.startswith(b'event: error\ndata: {"type":"error"') and it.client.ended and it.quiet()


async def test_responses_are_never_stored(play: MakePlay) -> None:
    it = play("r0")
    engine = await answered(it, RESPONSES_ROUTE, {"id": "r", "model": BOT_V1, "usage": {"input_tokens": 1}})
    assert engine.requests[0]["store"] is False


@pytest.mark.parametrize("name", ["Not Found", "The model does not support Responses API"])
async def test_engine_without_the_route_answers_route_not_offered(play: MakePlay, name: str) -> None:
    it = play("r0", "r1")
    send_request(it, RESPONSES_ROUTE)
    (await it.connects()).refuses(404 if name == "Not Found" else 501, name)
    assert it.client.status == 400 and it.client.error["code"] == "route_not_offered"


async def test_messages_errors_have_anthropics_shape(play: MakePlay) -> None:
    it = play("r0")
    send_request(it, MESSAGES, max_tokens=None)
    body = orjson.loads(it.client.body)
    assert it.client.status == 400 and body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error" and "max_tokens" in body["error"]["message"]
    assert body["request_id"] == it.client.headers[b"x-request-id"].decode()


def test_x_api_key_header_is_accepted(play: MakePlay) -> None:
    it = play("r0")
    sent = [(b"host", b"x"), (b"content-type", b"application/json"), (b"anthropic-version", b"2023-06-01")]
    body = compact({"model": "acme/nothing", **BODIES[MESSAGES]})
    for key, status in (("wrong", 401), (headers()[2][1].decode().removeprefix("Bearer "), 404)):
        client = Client()
        it.gateway.handle(MESSAGES, [*sent, (b"x-api-key", key.encode())], body, client, it.rig.clock())
        assert client.status == status
        kind = "authentication_error" if status == 401 else "not_found_error"
        assert orjson.loads(client.body)["error"]["type"] == kind


def test_every_route_has_a_task_and_a_unique_path() -> None:
    assert len({route.path for route in ROUTES}) == len(ROUTES)
    assert all(route.tasks for route in ROUTES)
    assert routes.dialect_of("/v1/messages") is MESSAGES.dialect
    assert "/v1/embeddings" in routes.routes_for("embed") and "/v1/tokenize" not in routes.routes_for("embed")
    assert msgspec.structs.replace(PoolEntry(POOL, 1), task="embed").task in EMBEDDINGS.tasks


ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0.5,
    2**63,
    "",
    "x",
    [],
    [1],
    ["x"],
    [{}],
    [[]],
    {},
    {"type": 1, "content": [{}]},
)
READ_ANYWHERE = (
    *("stream", "stream_options", "service_tier", "n", "best_of", "min_tokens", "max_tokens", "max_completion_tokens"),
    *("max_output_tokens", "session_id", "prompt_cache_key", "cache_salt", "model", "user", "store", "dimensions"),
    *("messages", "prompt", "input", "tools", "functions", "documents", "items", "system", "instructions", "tokens"),
    *("query", "queries", "text_1", "text_2", "data_1", "data_2", "chat_template_kwargs", "response_format", "text"),
)


@pytest.mark.parametrize("route", ROUTES, ids=[route.path for route in ROUTES])
async def test_odd_fields_never_cause_an_internal_error(play: MakePlay, route: Route) -> None:
    """Fields that a route's table leaves to the engine are not read by later steps as if they had been checked."""
    bodies = BODIES | {CHAT: {"messages": CHAT_LIKE}, COMPLETIONS: {"prompt": "hi"}}
    bodies |= {TOKENIZE: {"prompt": "hi"}, DETOKENIZE: {"tokens": [1]}}
    acme, globex = rig.snapshot().tenants
    capped = (rig.quota(max_output_tokens=50, max_context_tokens=500),)
    tenants = (msgspec.structs.replace(acme, context_overflow="slide"), globex)
    task = next(iter(sorted(route.tasks)))
    it = play("r0", quotas=capped, tenants=tenants, **of_task("generate" if "generate" in route.tasks else task))
    for stream in (False, True) if route.streams else (False,):
        for name, value in itertools.product(READ_ANYWHERE, ODD):
            client = Client()
            body = compact({"model": "acme/bot", "stream": stream, **bodies[route], name: value})
            answering = it.gateway.handle(route, headers(), body, client, it.rig.clock())
            assert client.status is None or 400 <= client.status < 500, (name, value, client.body)
            if answering is not None:
                answering.client_left()
