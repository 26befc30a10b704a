"""Dialects and named events: streams with event names, other names for usage, errors in each SDK's format."""

import itertools
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.gateway.errors import ErrorAnswer
from functions.gateway.request.answers import BadAnswer, Renaming, Usage
from functions.gateway.request.dialects import ANTHROPIC, POOLING, RESPONSES, Dialect, read_messages_usage

ENGINE, PUBLIC = "acme/bot@sha256-ab", "acme/bot"
MAX_BYTES = 4096
DIALECTS = [pytest.param(RESPONSES, id="responses"), pytest.param(ANTHROPIC, id="anthropic")]


def named(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


def response(status: str = "completed", **usage: Any) -> dict[str, Any]:
    return {"id": "resp_1", "model": ENGINE, "status": status, "usage": usage or None}


RESPONSE_STREAM = [
    named("response.created", response=response("in_progress")),
    named("response.in_progress", response=response("in_progress")),
    named("response.output_item.added", item={"type": "message"}),
    named("response.content_part.added", part={"type": "output_text", "text": ""}),
    named("response.output_text.delta", delta="Par"),
    named("response.output_text.delta", delta="is"),
    named("response.output_text.done", text="Paris"),
    named(
        "response.completed",
        response=response(input_tokens=12, input_tokens_details={"cached_tokens": 8}, output_tokens=2),
    ),
]
MESSAGE_STREAM = [
    named("message_start", message={"id": "m", "model": ENGINE, "usage": {"input_tokens": 10, "output_tokens": 0}}),
    named("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    named("ping"),
    named("content_block_delta", index=0, delta={"type": "text_delta", "text": "Par"}),
    named("content_block_delta", index=0, delta={"type": "text_delta", "text": "is"}),
    named("content_block_stop", index=0),
    named(
        "message_delta",
        delta={"stop_reason": "end_turn"},
        usage={
            "input_tokens": 10,
            "cache_read_input_tokens": 90,
            "cache_creation_input_tokens": 28,
            "output_tokens": 2,
        },
    ),
    named("message_stop"),
]
STREAMS = [
    pytest.param(RESPONSES, RESPONSE_STREAM, Usage(12, 2, 8), id="responses"),
    pytest.param(ANTHROPIC, MESSAGE_STREAM, Usage(128, 2, 90), id="anthropic"),
]


def relay(dialect: Dialect) -> Any:
    return dialect.relay(Renaming(ENGINE, PUBLIC), False, False, MAX_BYTES)


@pytest.mark.parametrize(("dialect", "events", "usage"), STREAMS)
def test_stream_passes_with_only_the_model_renamed(dialect: Dialect, events: list[bytes], usage: Usage) -> None:
    stream = relay(dialect)
    out = b"".join(stream.feed(event) for event in events)
    assert out == b"".join(events).replace(ENGINE.encode(), PUBLIC.encode())
    assert stream.done and stream.error is None and stream.events == 2 and stream.usage == usage


@pytest.mark.parametrize(("dialect", "events", "usage"), STREAMS)
@given(cuts=st.lists(st.integers(0, 5000), max_size=12))
def test_any_segmentation_gives_the_same_output(
    dialect: Dialect, events: list[bytes], usage: Usage, cuts: list[int]
) -> None:
    data, stream, out = b"".join(events), relay(dialect), b""
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        piece = stream.feed(data[start:end])
        assert piece == b"" or piece.endswith(b"\n\n"), "never half an event"
        out += piece
    assert out == data.replace(ENGINE.encode(), PUBLIC.encode()) and stream.usage == usage


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "event",
    [
        b"data: {}\n\n",
        b"event: x\n\n",
        b"event: x\ndata: [1]\n\n",
        b"event: x\ndata: {\n\n",
        b"event: x\r\ndata: {}\r\n\r\n" * 2000,
        b"event: x\ndata: {" + b"a" * 9 * MAX_BYTES,
        b"<html>\n\n",
    ],
)
def test_malformed_event_is_a_bad_answer(dialect: Dialect, event: bytes) -> None:
    with pytest.raises(BadAnswer):
        relay(dialect).feed(event)


@pytest.mark.parametrize(
    ("dialect", "event"),
    [
        (RESPONSES, named("error", message="x", code=500)),
        (RESPONSES, named("response.failed", response=response("failed"))),
        (ANTHROPIC, named("error", error={"type": "internal_error", "message": "x"})),
        (RESPONSES, b'data: {"error":{"code":503}}\n\n'),
        (ANTHROPIC, b'data: {"error":{"code":503}}\n\n'),
    ],
)
def test_an_engines_error_is_held_back(dialect: Dialect, event: bytes) -> None:
    stream = relay(dialect)
    assert stream.feed(event + named("later")) == b""
    assert stream.error is not None and orjson.loads(stream.error) and not stream.done


@pytest.mark.parametrize(("dialect", "events", "usage"), STREAMS)
def test_events_before_text_do_not_commit_the_answer(dialect: Dialect, events: list[bytes], usage: Usage) -> None:
    first_text = next(index for index, event in enumerate(events) if b"delta" in event.split(b"\n")[0])
    assert dialect.first_sign(b"".join(events[:first_text])) == "nothing_yet"
    assert dialect.first_sign(b"".join(events[: first_text + 1])) == "answering"
    assert dialect.first_sign(b": comment\n\n") == "nothing_yet"


ABORTED_RESPONSE = [
    *RESPONSE_STREAM[:4],
    named("response.output_text.done", text=""),
    named("response.content_part.done", part={"type": "output_text", "text": ""}),
    named("response.output_item.done", item={"type": "message"}),
    named("response.completed", response=response(input_tokens=12, output_tokens=0)),
]
ABORTED_MESSAGE = [
    *MESSAGE_STREAM[:3],
    named("content_block_stop", index=0),
    named("message_delta", delta={"stop_reason": None}, usage={"input_tokens": 10, "output_tokens": 0}),
]


@pytest.mark.parametrize(
    ("dialect", "events"),
    [
        pytest.param(RESPONSES, ABORTED_RESPONSE, id="responses"),
        pytest.param(RESPONSES, RESPONSE_STREAM[:2] + ABORTED_RESPONSE[-1:], id="responses, shortly"),
        pytest.param(ANTHROPIC, ABORTED_MESSAGE, id="anthropic"),
        pytest.param(ANTHROPIC, MESSAGE_STREAM[:1] + ABORTED_MESSAGE[-1:], id="anthropic, shortly"),
    ],
)
def test_stream_without_a_token_counts_as_dropped(dialect: Dialect, events: list[bytes]) -> None:
    """vLLM reports nothing else: `stop_reason` is null in one dialect, `completed` in the other."""
    assert dialect.first_sign(b"".join(events[:-1])) == "nothing_yet"
    assert dialect.first_sign(b"".join(events)) == "dropped"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_whole_answer_without_a_token_counts_as_aborted(dialect: Dialect) -> None:
    def aborted(**fields: Any) -> bool:
        return dialect.whole(orjson.dumps({"model": ENGINE, **fields}), Renaming(ENGINE, PUBLIC)).aborted

    assert aborted(usage={"input_tokens": 9, "output_tokens": 0})
    assert not aborted(usage={"input_tokens": 9, "output_tokens": 1})
    assert not aborted(usage={"input_tokens": 9}), "it does not say"
    assert not aborted(input_tokens=9), "count_tokens generates nothing"


@pytest.mark.parametrize(("dialect", "events", "usage"), STREAMS)
def test_passed_events_are_counted(dialect: Dialect, events: list[bytes], usage: Usage) -> None:
    stream = relay(dialect)
    stream.feed(b": a comment\n\n" + b"".join(events[:5]))
    assert stream.passed == 5


def test_nothing_passes_after_the_end_event() -> None:
    stream = relay(ANTHROPIC)
    assert stream.feed(named("message_stop") + named("message_stop")) == named("message_stop")


def test_cached_tokens_are_part_of_the_prompt() -> None:
    counts = {"input_tokens": 10, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 28, "output_tokens": 5}
    assert read_messages_usage(orjson.dumps({"usage": counts}), None) == Usage(128, 5, 90)


def test_a_later_count_of_output_alone_keeps_the_prompt() -> None:
    assert read_messages_usage(b'{"usage":{"output_tokens":7}}', Usage(128, 0, 90)) == Usage(128, 7, 90)


@pytest.mark.parametrize("value", [-1, 2**70, "9", None, True, 1.5, []])
def test_absurd_usage_is_ignored(value: Any) -> None:
    usage = {"input_tokens": value, "output_tokens": value}
    for dialect in (RESPONSES, ANTHROPIC):
        found = dialect.whole(orjson.dumps({"usage": usage}) if value != 2**70 else b'{"usage":{}}', Renaming("a", "a"))
        assert found.usage in (Usage(), None)


@pytest.mark.parametrize("dialect", [RESPONSES, ANTHROPIC, POOLING])
@pytest.mark.parametrize("body", [b"", b"[]", b"nope", b'{"a":1', b"\xff", b"null"])
def test_whole_answer_that_is_no_object_is_bad(dialect: Dialect, body: bytes) -> None:
    with pytest.raises(BadAnswer):
        dialect.whole(body, Renaming("a", "a"))


DEEP = b"[" * 50_000 + b"]" * 50_000  # tenants may not send it, a broken engine may; Python 3.13 parses 5,000 levels


@pytest.mark.parametrize("dialect", [RESPONSES, ANTHROPIC, POOLING])
def test_deeply_nested_whole_answer_is_bad(dialect: Dialect) -> None:
    with pytest.raises(BadAnswer):
        dialect.whole(b'{"x":%b}' % DEEP, Renaming("a", "a"))


@pytest.mark.parametrize(("dialect", "name"), [(RESPONSES, b"response.completed"), (ANTHROPIC, b"message_delta")])
def test_usage_of_a_deeply_nested_event_is_unknown(dialect: Dialect, name: bytes) -> None:
    event = b'event: %b\ndata: {"x":%b}\n\n' % (name, DEEP)
    relay = dialect.relay(Renaming("a", "a"), True, True, 1024 * 1024)
    assert relay.feed(event) == event and relay.usage is None
    dialect.first_sign(event)


def test_a_pooled_answer_is_counted_and_renamed() -> None:
    body = orjson.dumps({"model": ENGINE, "data": [{"embedding": [0.1] * 9}], "usage": {"prompt_tokens": 5}})
    answer = POOLING.whole(body, Renaming(ENGINE, PUBLIC))
    assert answer.usage == Usage(5, 0, 0) and orjson.loads(answer.body)["model"] == PUBLIC


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (408, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_errors_as_anthropics_sdk_reads_them(status: int, kind: str) -> None:
    body = orjson.loads(ANTHROPIC.error_body(ErrorAnswer(status, "t", "c", "Do this."), "req-1"))
    assert body == {"type": "error", "error": {"type": kind, "message": "Do this."}, "request_id": "req-1"}


def test_error_events_are_named() -> None:
    answer = ErrorAnswer(502, "server_error", "upstream_lost", "Send it again.")
    name, data = RESPONSES.error_event(answer, "r", 7).split(b"\n")[:2]
    assert name == b"event: error"
    assert orjson.loads(data.removeprefix(b"data: ")) == {
        "type": "error",
        "code": "upstream_lost",
        "message": "Send it again.",
        "param": None,
        "sequence_number": 7,
    }
    assert ANTHROPIC.error_event(answer, "r", 7).startswith(b'event: error\ndata: {"type":"error"')
