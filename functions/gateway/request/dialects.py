"""Dialects of the route families: how to relay a stream, read a whole answer and write an error.

    OPENAI      chat and plain completions: `data:` events to `[DONE]`; tokenize and detokenize
    RESPONSES   named events to `response.completed`; a flat error event, as OpenAI's SDK expects
    ANTHROPIC   named events to `message_stop`; errors as Anthropic's SDK expects them
    POOLING     whole answers only; they are large and are not searched for choices

`relay` and `named_events` read streams. `attempt` and `exchange` use the dialect of their route.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec
import orjson

from functions.gateway.errors import ErrorAnswer
from functions.gateway.request import named_events
from functions.gateway.request.answers import (
    BadAnswer,
    Renaming,
    Usage,
    WholeAnswer,
    read_usage,
    usage_of,
    whole_answer,
)
from functions.gateway.request.named_events import Grammar, NamedEventRelay
from functions.gateway.request.relay import Sign, StreamRelay, first_sign

_NAMED_EVENT_FACTOR = 8  # one event repeats the whole request and the whole answer
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class Relay(Protocol):
    """A streamed answer on its way from the engine to the client."""

    done: bool
    error: bytes | None
    events: int
    tokens: int  # tokens in these events: the engine's count, or the smallest possible number

    @property
    def usage(self) -> Usage | None: ...

    @property
    def is_counted(self) -> bool:
        """True if the engine has reported usage up to the last event."""

    @property
    def passed(self) -> int:
        """Number of events of all kinds that went to the client."""

    def feed(self, data: bytes) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Dialect:
    # Arguments: renaming, keep the usage event, keep each event's usage, largest event in bytes
    relay: Callable[[Renaming, bool, bool, int], Relay]
    first_sign: Callable[[bytes], Sign]
    whole: Callable[[bytes, Renaming], WholeAnswer]
    error_body: Callable[[ErrorAnswer, str], bytes]  # arguments: answer, request id
    # Arguments: answer, request id, number of events before
    error_event: Callable[[ErrorAnswer, str, int], bytes]


class _Nested(msgspec.Struct):
    usage: dict[str, Any] | None = None


class _Reported(msgspec.Struct):
    """Usage at the top level, in a response, or in a message."""

    usage: dict[str, Any] | None = None
    response: _Nested | None = None
    message: _Nested | None = None


_reported = msgspec.json.Decoder(_Reported)


def _counts(data: bytes) -> dict[str, Any] | None:
    try:
        found = _reported.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    inner = found.response or found.message
    return found.usage or (inner.usage if inner is not None else None)


def generated_nothing(data: bytes) -> bool:
    """Return True if a complete answer has no token. Only an engine that is draining produces such an answer."""
    counts = _counts(data)
    made = counts.get("output_tokens") if counts is not None else None
    return type(made) is int and made == 0


def read_responses_usage(data: bytes, known: Usage | None) -> Usage | None:
    """Return the usage of a Responses event, or `known` if it has none.

    The cached tokens are a part of `input_tokens`.
    """
    counts = _counts(data)
    if counts is None:
        return known
    details = counts.get("input_tokens_details")
    cached = details.get("cached_tokens") if type(details) is dict else 0
    return usage_of(counts.get("input_tokens"), counts.get("output_tokens"), cached)


def read_messages_usage(data: bytes, known: Usage | None) -> Usage | None:
    """Return the usage of an Anthropic event, with the `known` prompt if it counts only output; `known` if none.

    Tokens read from and written to the cache are not part of `input_tokens`.

    Worked example (test_cached_tokens_are_part_of_the_prompt): 10 input tokens, 90 read and 28 written are a prompt
    of 128 tokens.
    """
    counts = _counts(data)
    if counts is None:
        return known
    read = counts.get("cache_read_input_tokens")
    parts = (counts.get("input_tokens"), read, counts.get("cache_creation_input_tokens"))
    prompt = sum(part for part in parts if type(part) is int and part > 0)
    if prompt == 0 and known is not None:  # an event that counts only the output
        return usage_of(known.prompt_tokens, counts.get("output_tokens"), known.cached_tokens)
    return usage_of(prompt, counts.get("output_tokens"), read)


_RESPONSES_GRAMMAR = Grammar(
    openings=frozenset(
        (
            b"response.created",
            b"response.in_progress",
            b"response.queued",
            b"response.output_item.added",
            b"response.content_part.added",
            b"response.output_text.done",  # these three end an item without deltas, so they contain no output
            b"response.content_part.done",
            b"response.output_item.done",
        )
    ),
    ends=frozenset((b"response.completed", b"response.incomplete")),
    failures=frozenset((b"error", b"response.failed")),
    reports=frozenset((b"response.completed", b"response.incomplete", b"response.failed")),
    totals=frozenset((b"response.completed", b"response.incomplete")),
    read_usage=read_responses_usage,
    is_empty=generated_nothing,
)
_MESSAGES_GRAMMAR = Grammar(
    openings=frozenset((b"message_start", b"content_block_start", b"content_block_stop", b"ping")),
    ends=frozenset((b"message_stop",)),
    failures=frozenset((b"error",)),
    reports=frozenset((b"message_start", b"message_delta")),
    totals=frozenset((b"message_delta",)),
    read_usage=read_messages_usage,
    is_empty=generated_nothing,
)


def _openai_stream(renaming: Renaming, keep_usage: bool, keep_counts: bool, max_event_bytes: int) -> Relay:
    return StreamRelay(renaming, keep_usage, max_event_bytes, keep_counts=keep_counts)


def _named_stream(
    grammar: Grammar, renaming: Renaming, _keep_usage: bool, _keep_counts: bool, max_event_bytes: int
) -> Relay:
    return NamedEventRelay(grammar, renaming, _NAMED_EVENT_FACTOR * max_event_bytes)


def _named_sign(grammar: Grammar, opening: bytes) -> Sign:
    return named_events.first_sign(opening, grammar)


def _whole_with(
    read_usage: Callable[[bytes, Usage | None], Usage | None], body: bytes, renaming: Renaming
) -> WholeAnswer:
    usage = read_usage(body, None)
    _check_object(body)
    return WholeAnswer(renaming.rename_fields(body), usage, aborted=generated_nothing(body))


def _whole_pooled(body: bytes, renaming: Renaming) -> WholeAnswer:
    """Return a whole answer with megabytes of numbers, which is scanned once without building objects.

    Raise BadAnswer if it is not one JSON object.
    """
    _check_object(body)
    return WholeAnswer(renaming.rename_fields(body), read_usage(body), aborted=False)


def _check_object(body: bytes) -> None:
    try:
        _reported.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadAnswer("not a JSON object") from error


def _openai_body(answer: ErrorAnswer, _request_id: str) -> bytes:
    return answer.body()


def _openai_event(answer: ErrorAnswer, _request_id: str, _passed: int) -> bytes:
    return answer.event()


def _responses_event(answer: ErrorAnswer, _request_id: str, passed: int) -> bytes:
    """Return the error event, numbered `passed`: the number of events before it.

    Events are numbered from 0, and clients treat a repeated number as a restarted stream.
    """
    content = {"type": "error", "code": answer.code, "message": answer.message, "param": answer.param}
    return b"event: error\ndata: %b\n\n" % orjson.dumps(content | {"sequence_number": passed})


def _anthropic_body(answer: ErrorAnswer, request_id: str) -> bytes:
    kind = _ANTHROPIC_TYPES.get(answer.status, "invalid_request_error" if answer.status < 500 else "api_error")
    error = {"type": kind, "message": answer.message}
    return orjson.dumps({"type": "error", "error": error, "request_id": request_id})


def _anthropic_event(answer: ErrorAnswer, request_id: str, _passed: int) -> bytes:
    return b"event: error\ndata: %b\n\n" % _anthropic_body(answer, request_id)


OPENAI = Dialect(_openai_stream, first_sign, whole_answer, _openai_body, _openai_event)
POOLING = Dialect(_openai_stream, first_sign, _whole_pooled, _openai_body, _openai_event)
RESPONSES = Dialect(
    partial(_named_stream, _RESPONSES_GRAMMAR),
    partial(_named_sign, _RESPONSES_GRAMMAR),
    partial(_whole_with, read_responses_usage),
    _openai_body,
    _responses_event,
)
ANTHROPIC = Dialect(
    partial(_named_stream, _MESSAGES_GRAMMAR),
    partial(_named_sign, _MESSAGES_GRAMMAR),
    partial(_whole_with, read_messages_usage),
    _anthropic_body,
    _anthropic_event,
)
