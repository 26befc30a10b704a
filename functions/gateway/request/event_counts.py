"""Tokens of an event: what its engine counted, or the fewest that its text may be.

Engines tell with each event the usage of its choice so far; `relay` cuts that off and keeps it here as bytes. Where an
engine does not tell, an event is a token, unless it is longer than an event of one: then eight bytes of its text are
one, which is no more than there are (text under common vocabularies has four bytes a token).
Worked example (test_without_counts_long_events_are_counted_by_their_text): two events of 4,000 bytes are 1,000 tokens.

Neighbours: `relay` and `named_events` ask; `functions.gateway.quota.settlement` charges by it.
"""

from typing import Any

import msgspec
import orjson

COUNTS = b',"usage":{'
COUNTS_ENDS = (b"}}\n\n", b"}}}\n\n")  # as the last field of an event, with details at its own end or without
LONG_TOKEN_BYTES = 16
_BYTES_PER_TOKEN_AT_MOST = 8
_DATA_BYTES = len(b"data: ")
_NOT_SAID = frozenset(("role", "type", "id"))
_DEPTH = 6  # of a call's arguments in a delta: four


class Counts(msgspec.Struct):
    """Of one choice, so far; `total_tokens` and the rest are not read."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


_counts_decoder = msgspec.json.Decoder(Counts)


def counts_in(counts: bytes) -> Counts:
    """Of the end of an event, from `,"usage":` on."""
    try:
        return _counts_decoder.decode(counts[len(COUNTS) - 1 : -len(b"}\n\n")])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Counts()


def taken_apart(event: bytes) -> tuple[dict[str, Any] | None, bytes]:
    """The usage of an event with choices, and the event without it; JSONDecodeError where it is no JSON."""
    document = orjson.loads(event[_DATA_BYTES:])
    usage = document.pop("usage", None)
    return (usage, b"data: " + orjson.dumps(document)) if type(usage) is dict else (None, event)


def tokens_of_text(text_bytes: int) -> int:
    """Of one event: the fewest that there may be."""
    return text_bytes // _BYTES_PER_TOKEN_AT_MOST if text_bytes > LONG_TOKEN_BYTES else 1


def text_bytes_in(event: bytes) -> int:
    """Of the texts of an event's choices, as they are written there; 0 where it is not an event as they should be."""
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
    return said_bytes(choice["text"] if type(choice.get("text")) is str else choice.get("delta"))


def said_bytes(delta: Any, depth: int = _DEPTH) -> int:
    """All text in a delta: content, reasoning, arguments of calls."""
    if type(delta) is str:
        return len(orjson.dumps(delta)) - 2
    if depth == 0:
        return 0
    if type(delta) is dict:
        return sum(said_bytes(inner, depth - 1) for name, inner in delta.items() if name not in _NOT_SAID)
    return sum(said_bytes(inner, depth - 1) for inner in delta) if type(delta) is list else 0
