"""Figures that Locust records of an answer: first token, gaps and tokens, and answers that count as failures."""

import json

import pytest

from loadtests.locust.answers import Stream, WrongAnswer, error_code, text_of_whole, whole

MODEL = "acme/bot"


def event(content: str | None = None, **more: object) -> bytes:
    delta = {"role": "assistant"} if content is None else {"content": content}
    return b"data: " + json.dumps({"model": MODEL, "choices": [{"delta": delta}], **more}).encode() + b"\n"


def fed(*lines: tuple[bytes, float]) -> Stream:
    stream = Stream(MODEL, 10.0)
    for line, at_s in lines:
        stream.line(line, at_s)
    return stream


def test_first_token_is_the_first_event_with_text_and_gaps_lie_between_such() -> None:
    stream = fed(
        (b": waiting for capacity\n", 10.1),
        (event(), 10.2),  # only a role
        (event("Par"), 10.5),
        (b"\n", 10.5),
        (event("is"), 10.7),
        (event("."), 11.5),
        (event("", usage={"completion_tokens": 7}), 11.6),
        (b"data: [DONE]\n", 11.6),
    )
    stream.end()
    assert stream.first_token_s == pytest.approx(0.5)
    assert stream.gaps_s == pytest.approx([0.2, 0.8])
    assert ("".join(stream.text), stream.tokens) == ("Paris.", 7)


def test_parts_of_tool_calls_and_texts_of_completions_are_tokens() -> None:
    call = {"model": MODEL, "choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}]}
    text = {"model": MODEL, "choices": [{"text": "once"}]}
    stream = fed(*((b"data: " + json.dumps(each).encode(), 11.0 + n) for n, each in enumerate((call, text))))
    assert (stream.first_token_s, stream.gaps_s, stream.tokens) == (1.0, [1.0], 2)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([event("a")], r"without \[DONE\]"),
        ([event(), b"data: [DONE]"], "no token"),
        ([b'data: {"error": {"code": "replica_failed", "message": "request 17"}}'], "an error event: replica_failed"),
        ([event("a", model="acme/other")], "not asked for"),
        ([b"data: {"], "no JSON"),
        ([b"data: 7"], "no object"),
    ],
)
def test_incomplete_or_wrong_answer_raises(lines: list[bytes], why: str) -> None:
    with pytest.raises(WrongAnswer, match=why):
        fed(*((line, 11.0) for line in lines)).end()


def test_announced_other_model_may_answer() -> None:
    stream = Stream(None, 0.0)
    stream.line(event("a", model="smaller"), 1.0)
    stream.line(b"data: [DONE]", 1.0)
    stream.end()
    assert whole(b'{"model": "smaller"}', None)["model"] == "smaller"


def test_an_unstreamed_answer_is_checked_alike() -> None:
    body = {"model": MODEL, "choices": [{"message": {"content": None}}], "usage": {"completion_tokens": 3}}
    assert text_of_whole(whole(json.dumps(body).encode(), MODEL)) == ""
    for wrong in (b"", b"[]", b'{"model": "x"}', b'{"error": {}}'):
        with pytest.raises(WrongAnswer):
            whole(wrong, MODEL)


def test_errors_are_named_by_code_never_by_message() -> None:
    assert error_code({"error": {"code": "overloaded", "message": "try in 17 s"}}) == "overloaded"
    assert error_code({"error": "text"}) == error_code([]) == "without a code"
    assert len(error_code({"error": {"code": "x" * 1000}})) == 40
