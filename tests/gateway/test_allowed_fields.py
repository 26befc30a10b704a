"""Request fields that an engine receives: known ones, within bounds, and no id that tenants could share."""

import ast
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from functions.gateway.errors import RequestRejected
from functions.gateway.intake.intake import Intake, RawRequest
from functions.gateway.intake.media import admit_media
from functions.gateway.intake.routes import (
    CHAT,
    CLASSIFY,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    RERANK,
    RESPONSES_ROUTE,
    SCORE,
    TOKENIZE,
    Route,
)
from functions.gateway.limits import Limits
from functions.gateway.request.replies import MoreHeaders, more_headers
from functions.gateway.request.request import Admitted
from functions.gateway.routing.splits import Splits
from tests.gateway import rig
from tests.gateway.rig import ACME_KEY, GLOBEX_KEY, NOW_UNIX_S, PEPPER, routing

INTAKE = Intake(PEPPER, rig.limits(), Splits(lambda: 0.0))
USER = {"role": "user", "content": "hi"}
PICTURE = "data:image/png;base64,iVBORw0KGgo="
LONG = "word " * 2000
NEEDED: dict[str, dict[str, Any]] = {
    CHAT.path: {"messages": [USER]},
    COMPLETIONS.path: {"prompt": "hi"},
    RESPONSES_ROUTE.path: {"input": "hi"},
    MESSAGES.path: {"messages": [USER], "max_tokens": 8},
    TOKENIZE.path: {"prompt": "hi"},
}


def admit(route: Route, key: str = ACME_KEY, unknown: str | None = None, **fields: Any) -> Admitted:
    sections = {} if unknown is None else {"routing": (routing(unknown_fields=unknown),)}
    catalogue = rig.catalogue(**sections)
    model = "acme/bot" if key == ACME_KEY else "globex/bot"
    body = {"model": model, **NEEDED.get(route.path, {}), **fields}
    raw = RawRequest("req-1", rig.headers(key), json.dumps(body).encode())
    return INTAKE.admit(catalogue, route, raw, INTAKE.recognise(catalogue, raw, NOW_UNIX_S))


def sent(admitted: Admitted) -> dict[str, Any]:
    forwarded: dict[str, Any] = json.loads(admitted.upstream_body)
    return forwarded


def refusal(
    route: Route, key: str = ACME_KEY, unknown: str | None = None, **fields: Any
) -> tuple[int, str | None, str]:
    with pytest.raises(RequestRejected) as refused:
        admit(route, key, unknown, **fields)
    answer = refused.value.answer
    return answer.status, answer.param, answer.message


# unknown fields


@pytest.mark.parametrize("unknown", [None, "strip"])
def test_unknown_field_is_dropped_and_reported_to_the_sender(unknown: str | None) -> None:
    admitted = admit(CHAT, unknown=unknown, a_new_field_of_engines={"any": ["thing"]}, top_k=5, **{"bad\r\nname": 1})
    assert sent(admitted).keys() & {"a_new_field_of_engines", "bad\r\nname"} == set() and sent(admitted)["top_k"] == 5
    assert (b"x-shoal-ignored", b"a_new_field_of_engines") in more_headers(admitted, ())


def named(headers: MoreHeaders) -> list[bytes]:
    return [value for name, value in headers if name == b"x-shoal-ignored"]


def test_unknown_fields_are_rejected_or_passed_by_setting() -> None:
    status, param, message = refusal(CHAT, unknown="refuse", a_new_field=1)
    assert (status, param) == (400, "a_new_field") and "unknownFields" in message and "a_new_field" in message
    admitted = admit(CHAT, unknown="pass", a_new_field=1)
    assert sent(admitted)["a_new_field"] == 1 and not named(more_headers(admitted, ()))
    assert "a_new_field" not in sent(admit(CHAT, unknown="refuse", a_new_field=None)), "null is absent"


# fields that engines have but tenants may not set


@pytest.mark.parametrize(
    ("route", "field", "value"),
    [
        (CHAT, "stream_interval", 1000),  # a stream of 4,000 tokens in four events, broken off
        (COMPLETIONS, "stream_interval", 17),
        (CHAT, "prompt_logprobs", -1),  # log probabilities of the whole vocabulary, for each token of the prompt
        (CHAT, "chat_template", "{% for x in range(10**9) %}{% endfor %}"),
        (CHAT, "chat_template_kwargs", {"chat_template": "x"}),
        (RESPONSES_ROUTE, "chat_template_kwargs", {"chat_template": "x"}),
        (TOKENIZE, "chat_template", "x"),
        (CHAT, "mm_processor_kwargs", {"max_pixels": 10**9}),
        (CHAT, "media_io_kwargs", {"video": {"num_frames": 10**6}}),
        (COMPLETIONS, "prompt_embeds", "gASV"),
        *((CHAT, name, {"a": 1}) for name in ("kv_transfer_params", "ec_transfer_params", "vllm_xargs")),
        *((RESPONSES_ROUTE, name, "x") for name in ("previous_response_id", "conversation", "request_id")),
        *((MESSAGES, name, {"a": 1}) for name in ("kv_transfer_params", "vllm_xargs")),
    ],
)
def test_refused(route: Route, field: str, value: Any) -> None:
    status, param, _ = refusal(route, **{field: value})
    assert (status, param) == (400, field)


@pytest.mark.parametrize("field", ["include_reasoning", "mm_payload", "session_id", "prompt_cache_key", "cache_salt"])
def test_accepted_field_is_never_sent_to_engines(field: str) -> None:
    value: Any = False if field == "include_reasoning" else "none"
    assert sent(admit(CHAT, GLOBEX_KEY, **{field: value})).get(field) is None


def test_stream_always_requests_usage_in_every_event() -> None:
    for options in (None, {}, {"include_usage": False}, {"include_usage": True, "continuous_usage_stats": False}):
        admitted = admit(CHAT, stream=True, stream_options=options)
        assert sent(admitted)["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


# fields that become part of the prompt


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        (CHAT, {"documents": [{"title": "a", "text": LONG}]}),
        (CHAT, {"chat_template_kwargs": {"context": LONG}}),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f", "description": LONG}}]}),
        (CHAT, {"functions": [{"name": "f", "description": LONG}]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "title": LONG}]}]}),
        (CHAT, {"messages": [USER | {"reasoning": LONG}]}),
        (COMPLETIONS, {"suffix": LONG}),
        (COMPLETIONS, {"prompt": [1, 2, 3], "suffix": LONG}),
        (RESPONSES_ROUTE, {"instructions": LONG}),
        (RESPONSES_ROUTE, {"chat_template_kwargs": {"context": LONG}}),
        (MESSAGES, {"system": LONG}),
        (MESSAGES, {"chat_template_kwargs": {"context": LONG}}),
    ],
)
def test_prompt_estimate_includes_every_prompt_field(route: Route, fields: dict[str, Any]) -> None:
    assert admit(route, **fields).features.prompt_tokens >= len(LONG) // 5


def test_picture_in_a_text_part_counts_as_picture() -> None:
    part = {"type": "text", "text": "look", "uuid": "a", "image_url": {"url": PICTURE}}
    assert admit(CHAT, messages=[{"role": "user", "content": [part]}]).features.prompt_tokens > 500


# ids of pictures


def with_id(uuid: Any = "logo", **part: Any) -> dict[str, Any]:
    picture = {"type": "image_url", "image_url": {"url": PICTURE}, "uuid": uuid} | part
    return {"messages": [{"role": "user", "content": [picture]}]}


def id_sent(key: str, uuid: str = "logo") -> str:
    found: str = sent(admit(CHAT, key, **with_id(uuid)))["messages"][0]["content"][0]["uuid"]
    return found


def test_picture_ids_are_hashed_per_tenant() -> None:
    acme, globex = id_sent(ACME_KEY), id_sent(GLOBEX_KEY)
    assert acme == id_sent(ACME_KEY) and len({acme, globex, id_sent(ACME_KEY, "other"), "logo"}) == 4
    assert len(acme) == 32, "a hash, as the engine's own: globex has no salt of its own, and an id all the same"


@pytest.mark.parametrize(
    "part",
    [
        {"image_url": None},
        {"image_url": {"url": None}},
        {"image_url": {}},
        {"image_url": ""},
        {"image_url": None, "image_embeds": "AAAA"},  # engines use only the first of them
        {"type": "text", "text": "x", "image_url": None},
        {"uuid": {}},
        {"uuid": ""},
        {"uuid": "x" * 257},
    ],
)
def test_picture_id_without_picture_is_refused(part: dict[str, Any]) -> None:
    status, param, _ = refusal(CHAT, **with_id(**part))
    assert (status, param) == (400, "messages")


def test_picture_ids_are_replaced_wherever_parts_occur() -> None:
    picture = {"type": "image_url", "image_url": {"url": PICTURE}, "uuid": "logo"}
    pair = {"content": [picture]}
    bodies: list[tuple[Route, dict[str, Any]]] = [
        (CHAT, {"messages": [USER, {"role": "tool", "tool_call_id": "1", "content": [picture]}]}),
        (RESPONSES_ROUTE, {"input": [{"role": "user", "content": [picture]}]}),
        (RESPONSES_ROUTE, {"input": [{"type": "function_call_output", "call_id": "1", "output": [picture]}]}),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [picture]}]}]}),
        (MESSAGES, {"messages": [USER], "system": [{"type": "document", "source": {"content": [picture]}}]}),
        (TOKENIZE, {"messages": [{"role": "user", "content": [picture]}]}),
    ]
    for route, fields in bodies:
        assert b'"uuid":"logo"' not in admit(route, **fields).upstream_body, route.path
    pooling: list[tuple[Route, dict[str, Any]]] = [
        (RERANK, {"query": "a", "documents": ["b", pair]}),
        (SCORE, {"queries": pair, "documents": [pair, "c"]}),
        (EMBEDDINGS, {"messages": [{"role": "user", "content": [picture]}]}),
        (CLASSIFY, {"messages": [{"role": "user", "content": [picture]}]}),
    ]
    for route, fields in pooling:
        body = INTAKE.read_body(route, json.dumps({"model": "acme/bot", **fields}).encode())
        admit_media(body, PEPPER, rig.TenantId("acme"), frozenset())
        assert b'"uuid": "logo"' not in json.dumps(body).encode(), route.path


def test_tool_argument_named_uuid_is_unchanged() -> None:
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {"uuid": "theirs", "content": "x"}}
    admitted = admit(MESSAGES, messages=[USER, {"role": "assistant", "content": [call]}])
    assert sent(admitted)["messages"][1]["content"][0]["input"]["uuid"] == "theirs"


# fields that SDKs send


def _parameters(package: str, path: str, name: str) -> set[str]:
    """Return the parameters of an installed SDK's method, read from its source: importing it takes seconds."""
    source = Path(str(metadata.distribution(package).locate_file(path))).read_text()
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name]
    return {
        item.target.id
        for item in classes[0].body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    } - {"model"}


# Newer than what is offered here, or for their own service: ignored like unknown fields.
_NOT_HERE = {"access_programs", "background_options", "image", "diagnostics", "user_profile_id", "workspace_id"}


@pytest.mark.parametrize(
    ("route", "package", "path", "name"),
    [
        (CHAT, "openai", "openai/types/chat/completion_create_params.py", "CompletionCreateParamsBase"),
        (COMPLETIONS, "openai", "openai/types/completion_create_params.py", "CompletionCreateParamsBase"),
        (EMBEDDINGS, "openai", "openai/types/embedding_create_params.py", "EmbeddingCreateParams"),
        (RESPONSES_ROUTE, "openai", "openai/types/responses/response_create_params.py", "ResponseCreateParamsBase"),
        (MESSAGES, "anthropic", "anthropic/types/message_create_params.py", "MessageCreateParamsBase"),
    ],
)
def test_fields_documented_by_sdks_are_known(route: Route, package: str, path: str, name: str) -> None:
    assert _parameters(package, path, name) - _NOT_HERE - route.table(Limits()).rules.keys() == set()
