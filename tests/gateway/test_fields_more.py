"""Field tables of responses, messages and pooling: one row per value, accepted and refused."""

from typing import Any

import pytest

from functions.gateway.errors import RequestRejected
from functions.gateway.intake import field_tables
from functions.gateway.intake.fields import FieldTable, check_fields
from functions.gateway.limits import Limits

LIMITS = Limits()
RESPONSES = field_tables.responses_table(LIMITS)
MESSAGES = field_tables.messages_table(LIMITS)
EMBEDDINGS = field_tables.embeddings_table(LIMITS)
CLASSIFY = field_tables.classify_table(LIMITS)
SCORE = field_tables.score_table(LIMITS)
RERANK = field_tables.rerank_table(LIMITS)
INSIDE = "http://169.254.169.254/latest"

WRONG: list[tuple[FieldTable, str, Any]] = [
    *((RESPONSES, "input", value) for value in ("", [], {}, 5, [5], [[]], ["a"], [{"role": "user"}] * 2049)),
    *((RESPONSES, "input", [{"role": "user", "content": value}]) for value in (5, {}, ["a"], [None])),
    (RESPONSES, "input", [{"role": "user", "content": [{"type": "input_image", "image_url": INSIDE}]}]),
    (RESPONSES, "input", [{"type": "function_call_output", "output": [{"type": "input_image", "image_url": INSIDE}]}]),
    (RESPONSES, "input", [{"type": "item_reference", "id": "x"}]),
    *((RESPONSES, "store", value) for value in (True, 1, "no")),
    *((RESPONSES, "background", value) for value in (True, 1)),
    *((RESPONSES, name, "x") for name in ("previous_response_id", "conversation", "prompt", "previous_input_messages")),
    *((RESPONSES, "tools", [{"type": kind}]) for kind in ("mcp", "web_search_preview", "code_interpreter", None)),
    *((RESPONSES, "max_output_tokens", value) for value in (0, -1, 2**31, True, "5")),
    *((RESPONSES, "stream", value) for value in (1, "true")),
    (RESPONSES, "priority", 5),
    *((MESSAGES, "messages", value) for value in ([], "hi", {}, [5], [{"role": "tool", "content": "x"}])),
    *((MESSAGES, "messages", [{"role": "user", "content": value}]) for value in (None, 5, {}, ["x"])),
    (
        MESSAGES,
        "messages",
        [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": INSIDE}}]}],
    ),
    (
        MESSAGES,
        "messages",
        [
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "content": [{"type": "image", "source": {"type": "url", "url": INSIDE}}]}
                ],
            }
        ],
    ),
    (
        MESSAGES,
        "messages",
        [
            {
                "role": "user",
                "content": [
                    {
                        "type": "document",
                        "source": {
                            "type": "content",
                            "content": [{"type": "image", "source": {"type": "url", "url": INSIDE}}],
                        },
                    }
                ],
            }
        ],
    ),
    *((MESSAGES, "max_tokens", value) for value in (0, -1, 1.5, "5", True)),
    (MESSAGES, "tools", [{"type": "web_search_20250305", "name": "web_search"}]),
    (MESSAGES, "stop_sequences", ["a"] * 5),
    (MESSAGES, "system", 5),
    *(
        (table, "input", value)
        for table in (EMBEDDINGS, CLASSIFY)
        for value in ("", [], [""], ["a", 5], [5, "a"], [[]], [[1], "a"], [-1], [1.5], [True], {}, ["a"] * 2049)
    ),
    *((EMBEDDINGS, "dimensions", value) for value in (0, -1, 65_537, "64", 1.5, True)),
    *((EMBEDDINGS, "encoding_format", value) for value in ("bytes", "bytes_only", "", 5, ["float"])),
    (EMBEDDINGS, "embed_dtype", "float16"),
    (EMBEDDINGS, "messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": INSIDE}}]}]),
    (EMBEDDINGS, "stream", True),
    (EMBEDDINGS, "truncate_prompt_tokens", -2),
    *(
        (SCORE, "queries", value)
        for value in ("", [], 5, {}, [5], [""], ["a"] * 2049, {"content": []}, {"content": "a"})
    ),
    (SCORE, "documents", {"content": [{"type": "image_url", "image_url": {"url": INSIDE}}]}),
    *((RERANK, "query", value) for value in ("", 5, ["a"], {})),
    *((RERANK, "documents", value) for value in ("", [], [5], ["a"] * 2049)),
    *((RERANK, "top_n", value) for value in (-1, 1.5, True)),
]
RIGHT: list[tuple[FieldTable, str, Any]] = [
    (RESPONSES, "input", "hi"),
    (RESPONSES, "input", [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]),
    (RESPONSES, "input", [{"type": "function_call_output", "call_id": "c", "output": "rain"}]),
    (RESPONSES, "store", False),
    (RESPONSES, "store", None),
    (RESPONSES, "background", False),
    (RESPONSES, "tools", [{"type": "function", "name": "f", "parameters": {}}]),
    (RESPONSES, "n", 99),  # not a field of this route: the engine judges it
    (MESSAGES, "messages", [{"role": "user", "content": "hi"}, {"role": "assistant", "content": []}]),
    (MESSAGES, "system", [{"type": "text", "text": "be brief"}]),
    (MESSAGES, "service_tier", "auto"),
    (MESSAGES, "tools", [{"name": "f", "input_schema": {}}, {"type": "custom", "name": "g", "input_schema": {}}]),
    *((EMBEDDINGS, "input", value) for value in ("a", ["a", "b"], [1, 2], [[1], [2, 3]], ["a"] * 2048)),
    (EMBEDDINGS, "encoding_format", "base64"),
    (EMBEDDINGS, "stream", False),
    (SCORE, "queries", {"content": [{"type": "text", "text": "a"}]}),
    (SCORE, "documents", ["a", {"content": [{"type": "text", "text": "a"}]}]),
    (RERANK, "documents", ["a"] * 2048),
    (RERANK, "top_n", 0),
]


@pytest.mark.parametrize(("table", "name", "value"), WRONG)
def test_refused_with_param(table: FieldTable, name: str, value: Any) -> None:
    with pytest.raises(RequestRejected) as refused:
        check_fields({name: value}, table)
    answer = refused.value.answer
    assert answer.status == 400 and answer.param == name and name in answer.message


@pytest.mark.parametrize(("table", "name", "value"), RIGHT)
def test_accepted_values(table: FieldTable, name: str, value: Any) -> None:
    check_fields({name: value}, table)
