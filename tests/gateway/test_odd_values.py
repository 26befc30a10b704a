"""Any JSON value at any path of a body is accepted or refused with 400; none causes an internal error."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from functions.api.ids import TenantId
from functions.api.snapshot import PoolEntry, TenantEntry
from functions.gateway.errors import RequestRejected
from functions.gateway.intake.intake import Intake, RawRequest
from functions.gateway.intake.routes import ROUTES, Route
from functions.gateway.routing.splits import Splits
from tests.gateway import rig
from tests.gateway.rig import ACME_KEY, NOW_UNIX_S, PEPPER, POOL

URL = "https://images.example.com/cat.png"
TEXT = {"type": "text", "text": "hi"}
IMAGE = {"type": "image_url", "image_url": {"url": URL, "detail": "auto"}, "uuid": "logo"}
INPUT_IMAGE = {"type": "input_image", "image_url": URL}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT_MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [TEXT, IMAGE, SOUND]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "42"},
]
DOCUMENT = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "x"}]}}
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "x"}]}
PAIRS = {"query": "a", "queries": {"content": [TEXT, IMAGE]}, "documents": ["b", {"content": [TEXT, IMAGE]}]}
SAMPLING = {
    "stop": ["a"],
    "logit_bias": {"1": 1},
    "stream_options": {"include_usage": True},
    "metadata": {"a": "b"},
    "chat_template_kwargs": {"a": {"b": "c"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    "structured_outputs": {"regex": "a"},
    "stop_token_ids": [1],
    "bad_words": ["x"],
    "seed": 1,
    "session_id": "s",
    "service_tier": "flex",
    "cache_salt": "x",
    "unknown_one": {"a": [1]},
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": CHAT_MESSAGES,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "documents": [{"title": "a", "text": "b"}],
        "stream": True,
        **SAMPLING,
    },
    "/v1/completions": {"prompt": ["a", "b"], "suffix": "c", "stream": True, **SAMPLING},
    "/v1/responses": {
        "input": [
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": URL}],
            },
            {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "a"}]},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {}}],
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low"},
        "include": ["x"],
        **SAMPLING,
    },
    "/v1/messages": {
        "messages": [{"role": "user", "content": [TEXT, DOCUMENT, RESULT]}, {"role": "assistant", "content": "x"}],
        "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "f", "type": "custom", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "disabled"},
        "max_tokens": 8,
        "stop_sequences": ["x"],
        "metadata": {"user_id": "x"},
    },
    "/v1/embeddings": {"input": ["a", "b"], "messages": CHAT_MESSAGES[:2], "dimensions": 8},
    "/v1/classify": {"input": [[1, 2], [3]], "messages": CHAT_MESSAGES[:2]},
    "/v1/score": {**PAIRS, "text_1": "a", "data_1": ["a"], "items": ["a"], "text_2": "b", "data_2": "c"},
    "/v1/rerank": {**PAIRS, "top_n": 1, "instruction": "x"},
    "/v1/tokenize": {"messages": CHAT_MESSAGES, "tools": [{"type": "function"}]},
    "/v1/detokenize": {"tokens": [1, 2]},
}
BODIES["/v1/messages/count_tokens"] = BODIES["/v1/messages"]
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1.5, 2**63, "", "x", "data:,", [], [0], ["x"], [[]], {}, {"type": {}}, {"url": {}}),
    *([{"type": {}}], [{"type": [0], "content": {}}]),
)
TASKS = {"/v1/embeddings": "embed", "/v1/classify": "classify", "/v1/score": "score", "/v1/rerank": "score"}


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from paths(each, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    if not path:
        return odd
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], odd)
    return copy


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_odd_values_never_cause_an_internal_error(route: Route) -> None:
    task = TASKS.get(route.path, "generate")
    entry = PoolEntry(POOL, context_window_tokens=2048, task=task)  # type: ignore[arg-type]
    tenant = TenantEntry(TenantId("acme"), "enterprise", ("acme/*", POOL), context_overflow="slide")
    quotas = (rig.quota(max_context_tokens=1024),)
    others = (each for each in rig.snapshot().tenants if each.name != "acme")
    sections: dict[str, Any] = {"pools": (entry,), "quotas": quotas, "tenants": (tenant, *others)}
    catalogue = rig.catalogue(**sections)
    intake = Intake(PEPPER, rig.limits(media_hosts=frozenset({"images.example.com"})), Splits(lambda: 0.0))
    body = {"model": "acme/bot", **BODIES[route.path]}
    head = rig.headers(ACME_KEY)
    answers = {"taken": 0, "refused": 0}
    for path in paths(body):
        for odd in ODD:
            raw = RawRequest("r", head, json.dumps(replaced(body, path, odd)).encode())
            try:
                intake.admit(catalogue, route, raw, intake.recognise(catalogue, raw, NOW_UNIX_S))
                answers["taken"] += 1
            except RequestRejected as refused:
                assert 400 <= refused.answer.status < 500, (path, odd)
                answers["refused"] += 1
            except Exception as error:
                raise AssertionError(f"{route.path}: {odd!r} at {path}") from error
    assert min(answers.values()) > 2, answers
