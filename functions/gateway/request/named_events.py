"""Streams whose events have names: `event: response.output_text.delta`, then `data: {…}`.

`/v1/responses` and `/v1/messages` speak so. As in `relay`, events pass whole and as they came, but for the model's
name, and an event that arrives in pieces waits for its end. A `Grammar` says which names end the stream, which are
failures, and where usage stands; nothing else differs between the two.

No engine counts as it goes here, so an event is a token, and a long one as many as its text has at least
(`event_counts`).
Neighbours: `relay` is the same for `data:`-only streams; `dialects` has the grammars.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from functions.gateway.request.answers import BadAnswer, Renaming, Usage, outgrown
from functions.gateway.request.event_counts import said_bytes, tokens_of_text
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
    openings: frozenset[bytes]  # say that a stream begins, and nothing of its answer
    ends: frozenset[bytes]  # after one of these the answer is whole
    failures: frozenset[bytes]
    reports: frozenset[bytes]  # carry usage, which the later one completes
    totals: frozenset[bytes]  # of these, those that come when all was generated
    read_usage: Callable[[bytes, Usage | None], Usage | None]  # an event's data, and what was known before
    is_empty: Callable[[bytes], bool]  # whether a total says that nothing was generated


class NamedEventRelay:
    """One streamed answer. Feed it what the engine sent; it returns what the client gets."""

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
        self.events = 0  # with output
        self.tokens = 0  # of these, at least
        self.passed = 0  # of all kinds: the number that an event of ours would have
        self.usage: Usage | None = None
        self.done = False
        self.error: bytes | None = None  # the JSON of an error event, which is not passed on

    @property
    def is_counted(self) -> bool:
        """Never by the engine, until all was generated."""
        return False

    def feed(self, data: bytes) -> bytes:
        """What may go out now; BadAnswer when an event outgrows its bound or is none."""
        data = self._held + data
        whole = data.rfind(_EVENT_END) + len(_EVENT_END) if _EVENT_END in data else 0
        self._held = data[whole:]
        if len(self._held) > self._max_event_bytes:
            raise outgrown(self._held.startswith(_NAME), self._max_event_bytes)
        passed = []
        for event in data[:whole].split(_EVENT_END)[:-1]:
            if self.done or self.error is not None:
                break  # nothing belongs after the end
            if self._take(event):
                passed.append(event + _EVENT_END)
        return self._renaming.fields(b"".join(passed))

    def _take(self, event: bytes) -> bool:
        """Whether the event passes on."""
        if event.startswith(_ERROR):
            self.error = event[len(b"data: ") :]
            return False
        if event.startswith(_COMMENT):
            return True
        if event == _DONE:
            return False  # neither grammar has it
        name, separator, data = event.partition(b"\n")
        if not (separator and name.startswith(_NAME) and data.startswith(_DATA) and data.endswith(b"}")):
            raise BadAnswer("an event that is no named JSON object")
        return self._take_named(name.removeprefix(_NAME), data.removeprefix(b"data: "))

    def _take_named(self, name: bytes, data: bytes) -> bool:
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
        return tokens_of_text(said_bytes(_delta_decoder.decode(data).delta))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 1


def first_sign(opening: bytes, grammar: Grammar) -> Sign:
    """What the first events say: an engine that only began to speak may still be left for another.

    One that comes to its end without a single token was draining: it has dropped the request.
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
