"""Field checks: one row per value, accepted and refused."""

from typing import Any

import pytest

from functions.gateway.errors import RequestRejected
from functions.gateway.intake import field_tables, fields
from functions.gateway.limits import Limits

LIMITS = Limits()
CHAT = field_tables.chat_table(LIMITS)
COMPLETION = field_tables.completion_table(LIMITS)
TOKENIZE = field_tables.tokenize_table(LIMITS)
DETOKENIZE = field_tables.detokenize_table(LIMITS)
USER = {"role": "user", "content": "hi"}


def refused_param(table: fields.FieldTable, body: dict[str, Any]) -> str | None:
    with pytest.raises(RequestRejected) as refused:
        fields.check_fields(body, table)
    answer = refused.value.answer
    assert answer.status == 400
    assert answer.param is not None and answer.param in answer.message
    return answer.param


COMMON_WRONG: list[tuple[str, Any]] = [
    *(("stream", value) for value in (1, "true", [], {})),
    *(("n", value) for value in (0, -1, 9, 16384, True, 1.5, 9.0, "1", 2**63)),
    *(("max_tokens", value) for value in (-1, 2**31, 2**63, 1.5, True, "5", [5])),
    *(("seed", value) for value in (2**63, -(2**63) - 1, 1.5, 1e300, float("inf"), True, "1")),
    *(("temperature", value) for value in (-0.1, 100.1, True, "1", [], float("inf"))),
    *(("top_p", value) for value in (-0.1, 1.1, "1")),
    *(("top_k", value) for value in (-2, 1.5, 2**31)),
    *(("min_p", value) for value in (-1, 2)),
    *(("presence_penalty", value) for value in (-2.1, 2.1)),
    *(("frequency_penalty", value) for value in (-2.1, 2.1)),
    *(("repetition_penalty", value) for value in (-1, 101)),
    *(("stop", value) for value in (1, [1], ["a", None], ["a"] * 5, {})),
    *(("logit_bias", value) for value in ([], {"x": 1}, {"1": 101}, {"1": "1"}, {"1": True}, {"-1": 1}, {"²": 1})),
    ("logit_bias", {"9" * 5000: 1}),  # Python's int() raises on so many digits: a 500 from the engine
    ("logit_bias", {str(token): 1 for token in range(301)}),
    *(("stream_options", value) for value in ([], True, {"include_usage": 1}, {"continuous_usage_stats": "no"})),
    *((name, 5) for name in ("user", "session_id", "prompt_cache_key", "service_tier")),
    *((name, 1) for name in ("priority", "kv_transfer_params", "ec_transfer_params", "request_id", "vllm_xargs")),
    ("priority", 0),
]
COMMON_RIGHT: list[tuple[str, Any]] = [
    ("stream", True),
    ("stream", None),
    ("n", 8),
    ("seed", 2**63 - 1),
    ("seed", -(2**63)),
    ("temperature", 0),
    ("temperature", 2.0),
    ("top_p", 1),
    ("top_k", -1),
    ("stop", "end"),
    ("stop", ["a", "b", "c", "d"]),
    ("stop", []),
    ("logit_bias", {"50256": -100}),
    ("logit_bias", {}),
    ("stream_options", {"include_usage": True, "continuous_usage_stats": False}),
    ("stream_options", {"include_usage": None}),
    ("priority", None),
    ("a_field_nobody_knows", {"any": ["thing"]}),
]


@pytest.mark.parametrize("table", [CHAT, COMPLETION], ids=["chat", "completions"])
@pytest.mark.parametrize(("name", "value"), COMMON_WRONG)
def test_common_fields_refuse(table: fields.FieldTable, name: str, value: Any) -> None:
    assert refused_param(table, {name: value}) == name


@pytest.mark.parametrize("table", [CHAT, COMPLETION], ids=["chat", "completions"])
@pytest.mark.parametrize(("name", "value"), COMMON_RIGHT)
def test_common_fields_accept(table: fields.FieldTable, name: str, value: Any) -> None:
    fields.check_fields({name: value}, table)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("messages", value) for value in ([], {}, "hi", [1], [None], [[]], [{}], [USER] * 2049)),
        *(("messages", [{"role": role, "content": "x"}]) for role in (1, "", None, [])),
        *(("messages", [{"role": "user", "content": content}]) for content in (1, {}, [], [1], ["a"], [{"text": "a"}])),
        ("messages", [{"role": "user"}]),
        ("messages", [USER, {"role": "user", "content": None}]),
        ("messages", [{"role": "user", "content": [{"type": "text", "text": 1}]}]),
        *(("tools", value) for value in ({}, [1], [{}] * 129)),
        ("tool_choice", 1),
        ("response_format", "json"),
        *(("max_completion_tokens", value) for value in (0, -1, 2**31, True, "9")),
        ("max_tokens", 0),
        *(("logprobs", value) for value in (1, "yes")),
        *(("top_logprobs", value) for value in (-1, 21, True)),
        ("parallel_tool_calls", 1),
    ],
)
def test_chat_fields_refuse(name: str, value: Any) -> None:
    assert refused_param(CHAT, {name: value}) == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("messages", [USER] * 2048),
        ("messages", [{"role": "assistant", "content": None, "tool_calls": []}, USER]),
        ("messages", [{"role": "assistant"}, USER]),
        ("messages", [{"role": "user", "content": ""}]),
        ("messages", [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]),
        ("tools", [{}] * 128),
        ("tool_choice", "auto"),
        ("tool_choice", {"type": "function"}),
        ("response_format", {"type": "json_object"}),
        ("logprobs", True),
    ],
)
def test_chat_fields_accept(name: str, value: Any) -> None:
    fields.check_fields({name: value}, CHAT)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("prompt", value) for value in ("", [], {}, 1, True, [1, "a"], ["a", 1], [True], [[]], [[1], []], [1, -1])),
        *(("prompt", value) for value in ([2**63], [1, True], [[1], "a"], ["a"] * 129, [[1]] * 129, [[1.0]])),
        ("best_of", 9),
        ("echo", "yes"),
        *(("logprobs", value) for value in (True, -1, 21)),
        ("suffix", 1),
    ],
)
def test_completion_fields_refuse(name: str, value: Any) -> None:
    assert refused_param(COMPLETION, {name: value}) == name


@pytest.mark.parametrize("prompt", ["hi", ["a", ""], [1, 2, 3], [[1], [2, 3]], ["a"] * 128, list(range(10_000))])
def test_completion_prompts_accept(prompt: Any) -> None:
    fields.check_fields({"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 5}, COMPLETION)


@pytest.mark.parametrize(
    ("table", "name", "value"),
    [
        (TOKENIZE, "prompt", ["a"]),
        (TOKENIZE, "session_id", ["a"]),
        (DETOKENIZE, "prompt_cache_key", "x" * 513),
        (TOKENIZE, "messages", []),
        (TOKENIZE, "add_special_tokens", 1),
        (DETOKENIZE, "tokens", "abc"),
        (DETOKENIZE, "tokens", [1.0]),
        (DETOKENIZE, "tokens", [-1]),
        (DETOKENIZE, "tokens", [True]),
    ],
)
def test_token_routes_refuse(table: fields.FieldTable, name: str, value: Any) -> None:
    assert refused_param(table, {name: value}) == name


def test_an_absurd_value_is_not_repeated_to_the_caller() -> None:
    with pytest.raises(RequestRejected) as refused:
        fields.check_fields({"stop": ["x" * 100_000] * 5}, CHAT)
    assert len(refused.value.answer.message) < 200


def test_first_wrong_field_of_the_table_is_named() -> None:
    wrong = {"top_p": "1", "stream": 1, "messages": [USER]}
    assert refused_param(CHAT, wrong) == refused_param(CHAT, dict(reversed(wrong.items()))) == "stream"
    assert refused_param(CHAT, {"stream": 1, "priority": 1}) == "priority", "what is the platform's comes first"


def test_body_with_more_fields_than_the_table_is_checked() -> None:
    many = {f"own_{number}": 1 for number in range(len(CHAT.checks))}
    fields.check_fields(many | {"messages": [USER]}, CHAT)
    assert refused_param(CHAT, many | {"messages": []}) == "messages"


def test_whole_number_written_as_float_is_an_integer() -> None:
    """Languages with one number type write 5.0; pydantic, and so every engine, accepts it."""
    body: dict[str, Any] = {
        "max_tokens": 5.0,
        "n": 1.0,
        "temperature": 1.0,
        "messages": [{"role": "user", "content": "a"}],
    }
    fields.check_fields(body, CHAT)
    assert (body["max_tokens"], body["n"], body["temperature"]) == (5, 1, 1.0)
    assert [type(body[name]) for name in ("max_tokens", "n", "temperature")] == [int, int, float]
    with pytest.raises(RequestRejected, match="'n'"):
        fields.check_fields({"max_tokens": 5.0, "n": 1.5}, CHAT)
