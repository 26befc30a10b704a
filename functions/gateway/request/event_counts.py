"""Tokens of an event: the engine's count, or the smallest number that its text can have.

Engines report the usage of a choice so far with each event. `relay` removes it from the event and keeps it here as
bytes. If an engine reports none, an event counts as one token. An event that is longer than one token counts one
token per eight bytes of text, which is a lower bound: text under common vocabularies has four bytes a token. Worked
example (test_without_counts_long_events_are_counted_by_their_text): two events of 4,000 bytes are 1,000 tokens.

`relay` and `named_events` use this module; `functions.gateway.quota.settlement` charges by its counts.
"""

from typing import Any

import msgspec
import orjson

COUNTS = b',"usage":{'
COUNTS_ENDS = (b"}}\n\n", b"}}}\n\n")  # for usage as the last field of an event, with or without details at its own end
LONG_TOKEN_BYTES = 16
_BYTES_PER_TOKEN_AT_MOST = 8
_DATA_BYTES = len(b"data: ")
_NOT_SAID = frozenset(("role", "type", "id"))
_DEPTH = 6  # a call's arguments are at depth four of a delta


class Counts(msgspec.Struct):
    """Usage of one choice so far; `total_tokens` and other fields are not read."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


_counts_decoder = msgspec.json.Decoder(Counts)


def counts_in(counts: bytes) -> Counts:
    """Return the counts in the end of an event, from `,"usage":` on; empty ones if it is malformed."""
    try:
        return _counts_decoder.decode(counts[len(COUNTS) - 1 : -len(b"}\n\n")])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Counts()


def split_off_usage(event: bytes) -> tuple[dict[str, Any] | None, bytes]:
    """Return an event's usage, or None, and the event without it. Raise JSONDecodeError if it is not JSON."""
    document = orjson.loads(event[_DATA_BYTES:])
    usage = document.pop("usage", None)
    return (usage, b"data: " + orjson.dumps(document)) if type(usage) is dict else (None, event)


def tokens_of_text(text_bytes: int) -> int:
    """Return the smallest number of tokens, at least 1, that an event with this much text can have."""
    return text_bytes // _BYTES_PER_TOKEN_AT_MOST if text_bytes > LONG_TOKEN_BYTES else 1


def text_bytes_in(event: bytes) -> int:
    """Return the bytes of the texts in an event's choices as written in JSON, or 0 if the event is malformed."""
    try:
        document = orjson.loads(event[_DATA_BYTES:])
    except orjson.JSONDecodeError:
        return 0
    choices = document.get("choices") if type(document) is dict else None
    if type(choices) is not list:
        return 0
    return sum(_text_bytes_of(choice) for choice in choices)


def _text_bytes_of(choice: Any) -> int:
    if type(choice) is not dict:
        return 0
    return text_bytes_of_delta(choice["text"] if type(choice.get("text")) is str else choice.get("delta"))


def text_bytes_of_delta(delta: Any, depth: int = _DEPTH) -> int:
    """Return the bytes, as JSON, of all text in a delta to this depth: content, reasoning and arguments of calls."""
    if type(delta) is str:
        return len(orjson.dumps(delta)) - 2
    if depth == 0:
        return 0
    if type(delta) is dict:
        return sum(text_bytes_of_delta(inner, depth - 1) for name, inner in delta.items() if name not in _NOT_SAID)
    return sum(text_bytes_of_delta(inner, depth - 1) for inner in delta) if type(delta) is list else 0
