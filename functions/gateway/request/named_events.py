"""Relay of streams with named events: `event: response.output_text.delta`, then `data: {…}`.

`/v1/responses` and `/v1/messages` use this format. As in `relay`, whole events pass unchanged except for the model's
name, and a partial event waits for its end. A `Grammar` lists the names that end the stream, report a failure or
carry usage. The two routes differ in nothing else.

Engines do not report usage per event here. An event counts as one token, and a long event as the smallest number of
tokens that its text can have (`event_counts`). `relay` handles streams with `data:` lines only; `dialects` defines
the grammars.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from functions.gateway.request.answers import BadAnswer, Renaming, Usage, event_too_large
from functions.gateway.request.event_counts import text_bytes_of_delta, tokens_of_text
from functions.gateway.request.relay import Sign

_EVENT_END = b"\n\n"
_NAME = b"event: "
_DATA = b"data: {"
_COMMENT = b":"
_ERROR = b'data: {"error"'
_DONE = b"data: [DONE]"
_DELTA = b"delta"


class _Delta(msgspec.Struct):
    delta: Any = None


_delta_decoder = msgspec.json.Decoder(_Delta)


@dataclass(frozen=True, slots=True)
class Grammar:
    openings: frozenset[bytes]  # events at the beginning of a stream that contain no answer
    ends: frozenset[bytes]  # events after which the answer is complete
    failures: frozenset[bytes]
    reports: frozenset[bytes]  # events with usage; a later one completes an earlier one
    totals: frozenset[bytes]  # the reports that come after all was generated
    read_usage: Callable[[bytes, Usage | None], Usage | None]  # arguments: an event's data, the usage known before
    is_empty: Callable[[bytes], bool]  # returns True if a total reports no generated token


class NamedEventRelay:
    """One streamed answer: `feed` receives the engine's bytes and returns the client's."""

    __slots__ = (
        "_grammar",
        "_held",
        "_max_event_bytes",
        "_renaming",
        "done",
        "error",
        "events",
        "passed",
        "tokens",
        "usage",
    )

    def __init__(self, grammar: Grammar, renaming: Renaming, max_event_bytes: int) -> None:
        self._grammar = grammar
        self._renaming = renaming
        self._max_event_bytes = max_event_bytes
        self._held = b""
        self.events = 0  # events with output
        self.tokens = 0  # smallest number of tokens in these events
        self.passed = 0  # events of all kinds; also the number of an event that we would add
        self.usage: Usage | None = None
        self.done = False
        self.error: bytes | None = None  # JSON of an error event, which is not passed on

    @property
    def is_counted(self) -> bool:
        """Always False, because in this dialect engines report usage only at the end of a stream."""
        return False

    def feed(self, data: bytes) -> bytes:
        """Take in the engine's bytes; return those that may be sent now: whole events, with the requested model name.

        Raise BadAnswer if an event is malformed or over the bound.
        """
        data = self._held + data
        whole = data.rfind(_EVENT_END) + len(_EVENT_END) if _EVENT_END in data else 0
        self._held = data[whole:]
        if len(self._held) > self._max_event_bytes:
            raise event_too_large(self._held.startswith(_NAME), self._max_event_bytes)
        passed = []
        for event in data[:whole].split(_EVENT_END)[:-1]:
            if self.done or self.error is not None:
                break  # ignore everything after the end
            if self._read_event(event):
                passed.append(event + _EVENT_END)
        return self._renaming.rename_fields(b"".join(passed))

    def _read_event(self, event: bytes) -> bool:
        """Process one event without its end; return True if it is passed on. An error event is kept in `error`."""
        if event.startswith(_ERROR):
            self.error = event[len(b"data: ") :]
            return False
        if event.startswith(_COMMENT):
            return True
        if event == _DONE:
            return False  # `[DONE]` is in neither grammar
        name, separator, data = event.partition(b"\n")
        if not (separator and name.startswith(_NAME) and data.startswith(_DATA) and data.endswith(b"}")):
            raise BadAnswer("an event that is no named JSON object")
        return self._read_named_event(name.removeprefix(_NAME), data.removeprefix(b"data: "))

    def _read_named_event(self, name: bytes, data: bytes) -> bool:
        grammar = self._grammar
        if name in grammar.reports:
            self.usage = grammar.read_usage(data, self.usage)
        if name in grammar.failures:
            self.error = data
            return False
        if name.endswith(_DELTA) and name not in grammar.reports:
            self.events += 1
            self.tokens += _tokens_in(data)
        self.passed += 1
        self.done = name in grammar.ends
        return True


def _tokens_in(data: bytes) -> int:
    try:
        return tokens_of_text(text_bytes_of_delta(_delta_decoder.decode(data).delta))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 1


def first_sign(opening: bytes, grammar: Grammar) -> Sign:
    """Return "answering" if the first events contain an answer, "dropped" if they end without, else "nothing_yet".

    A request without an answer can still move to another replica. A draining engine ends streams without a token.
    """
    for event in opening.split(_EVENT_END):
        name, _, data = event.partition(b"\n")
        name = name.removeprefix(_NAME)
        if not event or event.startswith(_COMMENT) or name in grammar.openings:
            continue
        if name in grammar.totals and grammar.is_empty(data.removeprefix(b"data: ")):
            return "dropped"
        return "answering"
    return "nothing_yet"
