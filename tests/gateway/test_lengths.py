"""Lengths: what the engine receives for a request whose tier has caps, on both routes."""

import json
import time
from typing import Any

import pytest

from functions.gateway.errors import OverQuota
from functions.gateway.intake.intake import Intake, RawRequest
from functions.gateway.intake.routes import CHAT, COMPLETIONS, TOKENIZE, Route
from functions.gateway.routing.splits import Splits
from tests.gateway import rig
from tests.gateway.rig import NOW_UNIX_S, PEPPER, quota

INTAKE = Intake(PEPPER, rig.limits(), Splits(time.monotonic))
WORD = "abcd"  # 4 bytes, which count as one token here
WINDOW_TOKENS = 2048  # the pool's


def given(route: Route, body: dict[str, Any], caps: dict[str, int]) -> dict[str, Any]:
    """Return the body that the engine receives."""
    content = {COMPLETIONS: {"prompt": WORD}}.get(route, {"messages": [{"role": "user", "content": WORD}]})
    sent = json.dumps({"model": "acme/bot", **content, **body}).encode()
    raw = RawRequest("r", rig.headers(), sent)
    catalogue = rig.catalogue(quotas=(quota(**caps),))
    admitted = INTAKE.admit(catalogue, route, raw, INTAKE.recognise(catalogue, raw, NOW_UNIX_S))
    forwarded: dict[str, Any] = json.loads(admitted.upstream_body)
    return forwarded


def refusal(route: Route, body: dict[str, Any], caps: dict[str, int]) -> OverQuota:
    with pytest.raises(OverQuota) as refused:
        given(route, body, caps)
    assert refused.value.answer.status == 400
    assert refused.value.answer.type == "invalid_request_error"
    return refused.value


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 4])
def test_chat_without_max_tokens_gets_the_cap(stream: bool, n: int) -> None:
    forwarded = given(CHAT, {"stream": stream, "n": n}, {"max_output_tokens": 512})
    assert forwarded["max_tokens"] == 512
    assert forwarded["n"] == n and "max_completion_tokens" not in forwarded


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize(("asked", "passed_on"), [(512, 512), (1, 1), (None, 512)])
def test_max_tokens_within_the_cap_is_passed_on(field: str, asked: int | None, passed_on: int) -> None:
    forwarded = given(CHAT, {field: asked}, {"max_output_tokens": 512})
    assert (forwarded.get("max_completion_tokens") or forwarded.get("max_tokens")) == passed_on


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize(
    ("route", "field"),
    [
        (CHAT, "max_tokens"),
        (CHAT, "max_completion_tokens"),
        (COMPLETIONS, "max_tokens"),
        (CHAT, "min_tokens"),
        (COMPLETIONS, "min_tokens"),
    ],
)
def test_max_tokens_over_the_cap_is_refused(route: Route, field: str, n: int) -> None:
    refused = refusal(route, {field: 513, "n": n}, {"max_output_tokens": 512})
    answer = refused.answer
    assert (answer.param, answer.code, refused.dimension) == (field, "output_length_exceeded", "max_output_tokens")
    assert field in answer.message and "513" in answer.message and "512" in answer.message
    assert "enterprise" in answer.message, "the tier is named"


def test_max_completion_tokens_takes_precedence_over_max_tokens() -> None:
    forwarded = given(CHAT, {"max_completion_tokens": 100, "max_tokens": 9999}, {"max_output_tokens": 512})
    assert forwarded["max_completion_tokens"] == 100
    refused = refusal(CHAT, {"max_completion_tokens": 9999, "max_tokens": 100}, {"max_output_tokens": 512})
    assert refused.answer.param == "max_completion_tokens"


def test_completion_without_max_tokens_keeps_the_engines_default_of_16() -> None:
    assert "max_tokens" not in given(COMPLETIONS, {}, {"max_output_tokens": 512})
    assert given(COMPLETIONS, {}, {"max_output_tokens": 5})["max_tokens"] == 5
    assert given(COMPLETIONS, {"max_tokens": 0, "echo": True}, {"max_output_tokens": 5})["max_tokens"] == 0


def test_caps_at_or_above_the_window_are_left_to_the_engine() -> None:
    caps = {"max_output_tokens": WINDOW_TOKENS, "max_context_tokens": WINDOW_TOKENS}
    assert "max_tokens" not in given(CHAT, {}, caps)
    long = [{"role": "user", "content": WORD * 5000}]
    assert "max_tokens" not in given(CHAT, {"messages": long}, caps), "the engine counts exactly and answers 400 itself"


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": WORD * 60}, {"role": "assistant", "content": WORD * 40}]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": WORD * 50}] * 2}]}),
        (CHAT, {"messages": [{"role": "assistant"}, {"role": "user", "content": WORD * 100}]}),
        (CHAT, {"tools": [{"type": "function", "function": {"name": WORD * 100}}]}),
        (CHAT, {"documents": [{"title": "x", "text": WORD * 100}]}),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": WORD * 100}}]}]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": WORD * 100}]}]}),
        (COMPLETIONS, {"prompt": WORD * 100}),
        (COMPLETIONS, {"prompt": list(range(100))}),
        (COMPLETIONS, {"prompt": [WORD, WORD * 100]}),
        (COMPLETIONS, {"prompt": [[1], list(range(100))]}),
    ],
)
def test_a_prompt_over_the_context_cap_is_refused(route: Route, body: dict[str, Any]) -> None:
    refused = refusal(route, body, {"max_context_tokens": 100})
    assert refused.answer.param == ("messages" if route is CHAT else "prompt")
    assert (refused.answer.code, refused.dimension) == ("context_length_exceeded", "max_context_tokens")
    assert "100 tokens of context" in refused.answer.message and "enterprise" in refused.answer.message
    assert given(route, body, {"max_context_tokens": 200})


def test_max_tokens_is_cut_to_the_remaining_context() -> None:
    messages = [{"role": "user", "content": WORD * 90}]
    assert given(CHAT, {"messages": messages, "max_tokens": 50}, {"max_context_tokens": 100})["max_tokens"] == 10
    assert given(CHAT, {"messages": messages}, {"max_context_tokens": 100})["max_tokens"] == 10
    assert given(CHAT, {"messages": messages, "max_tokens": 5}, {"max_context_tokens": 100})["max_tokens"] == 5


def test_images_are_not_counted_as_prompt_text() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10_000}}
    short = {"type": "image_url", "image_url": "data:image/png;base64," + "A" * 10_000}
    messages = [{"role": "user", "content": [image, short, {"type": "text", "text": WORD}]}]
    assert given(CHAT, {"messages": messages}, {"max_context_tokens": 100})["max_tokens"] == 99


def test_prompt_field_on_the_chat_route_is_dropped() -> None:
    assert "prompt" not in given(CHAT, {"prompt": 5}, {"max_context_tokens": 20})


def test_tokenize_has_no_output_cap() -> None:
    forwarded = given(TOKENIZE, {"prompt": "a long one"}, {"max_output_tokens": 1, "max_context_tokens": 1})
    assert "max_tokens" not in forwarded


def test_a_tier_without_caps_changes_nothing() -> None:
    assert "max_tokens" not in given(CHAT, {}, {"requests_per_minute": 5})
    assert given(CHAT, {"max_tokens": 99_999}, {})["max_tokens"] == 99_999
