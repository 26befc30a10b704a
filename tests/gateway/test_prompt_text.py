"""Prompt text: one text per prompt, whatever a client sends."""

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from functions.gateway.intake.routes import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES_ROUTE,
    ROUTES,
    SCORE,
    Route,
)
from functions.gateway.prefix.prompt_text import prompt_text

SYSTEM = {"role": "system", "content": "You are brief."}
PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5000}}


def text_of(route: Route = CHAT, **parsed: Any) -> bytes:
    return prompt_text(parsed, route.output).text


def test_text_of_a_longer_chat_starts_with_the_shorter_one() -> None:
    first = text_of(messages=[SYSTEM, {"role": "user", "content": "héllo"}])
    second = text_of(
        messages=[
            SYSTEM,
            {"role": "user", "content": "héllo"},
            {"role": "assistant", "content": "hi"},
            {"role": "user", "content": "more"},
        ]
    )
    assert second.startswith(first)
    assert "héllo".encode() in first


def test_tools_precede_messages() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    with_tools = text_of(messages=[SYSTEM], tools=tools)
    assert with_tools.startswith(orjson.dumps(tools))
    assert with_tools.endswith(text_of(messages=[SYSTEM]))


def test_tool_calls_and_names_are_part_of_the_prompt() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]}
    other = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "g"}}]}
    assert text_of(messages=[call]) != text_of(messages=[other])


def test_text_in_parts_is_text_and_a_picture_is_a_hash() -> None:
    found = prompt_text(
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, PNG]}]}, CHAT.output
    )
    assert b"see" in found.text
    assert (found.media, found.ids) == (1, None)
    assert len(found.text) < 100
    other = {**PNG, "image_url": {"url": "https://example.com/a.png"}}
    assert found.text != text_of(messages=[{"role": "user", "content": [{"type": "text", "text": "see"}, other]}])


def test_token_ids_are_counted() -> None:
    assert prompt_text({"prompt": [1, 2, 3]}, COMPLETIONS.output).ids == 3
    assert prompt_text({"prompt": [[1, 2], [3]]}, COMPLETIONS.output).ids == 3
    assert prompt_text({"prompt": ["a", "b"]}, COMPLETIONS.output).ids is None
    assert prompt_text({"tokens": [5, 6]}, None).ids == 2
    assert text_of(COMPLETIONS, prompt=[1, 2, 3]).startswith(text_of(COMPLETIONS, prompt=[1, 2]))


def test_prompt_fields_of_other_routes_are_read() -> None:
    assert text_of(RESPONSES_ROUTE, input="tell me") == b"tell me"
    assert b"brief" in text_of(MESSAGES, messages=[{"role": "user", "content": "x"}], system="be brief")
    assert b"one" in text_of(EMBEDDINGS, input=["one", "two"])
    assert text_of(SCORE, text_1="a", text_2=["b", "c"]) != text_of(SCORE, text_1="a", text_2=["b", "d"])


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(ROUTES), _JSON, _JSON, _JSON)
def test_unchecked_fields_do_not_fail(route: Route, one: Any, two: Any, three: Any) -> None:
    """Unknown fields pass unchecked and may have the name of another route's prompt field."""
    by_field: dict[str, dict[str, Any]] = {
        "messages": {"messages": [{"role": "user", "content": "x"}]},
        "prompt": {"prompt": "x"},
    }
    checked = by_field.get(route.output.prompt if route.output is not None else "", {})
    parsed = {"prompt": one, "messages": two, "input": three, "system": one, "tools": two, "tokens": three} | checked
    assert type(prompt_text(parsed, route.output).text) is bytes
