"""Relay of an engine's streamed answer to the client: pure, bytes in, bytes out. (`answers`: whole ones.)

A stream passes event by event and is never parsed: what arrives as whole events goes out as the same bytes, but for
the model's name, which every event carries and which the client knows by another name. An event that arrives in
pieces waits for its end, so that a replica lost in mid-event leaves no half event behind.

Why a plain replacement is safe: inside a JSON string every quote is escaped, so the bytes `"model":"<engine name>"`
cannot come from generated text, only from the field itself.

The events of one answer begin with the same bytes (id, time, model) up to their first choice. So the beginning is read
once and compared from then on, with one memcmp in place of three searches; an event that begins otherwise is looked at.

Tokens are counted by the engine, not by events, of which one may have any number (`stream_interval`, speculation, an
engine that is busy): each event tells the usage of its choice so far. That is cut off again, unless the caller wants
it, and read only now and then and at the end, so that an answer that is broken off is charged as far as it came
(`event_counts`, also for engines that do not tell).
"""

from typing import Literal

import orjson

from functions.gateway.request.answers import BadAnswer, Renaming, Usage, outgrown, read_usage, usage_of
from functions.gateway.request.event_counts import (
    COUNTS,
    COUNTS_ENDS,
    LONG_TOKEN_BYTES,
    counts_in,
    taken_apart,
    text_bytes_in,
    tokens_of_text,
)

_EVENT_END = b"\n\n"
_DONE = b"data: [DONE]"
_OBJECT = b"data: {"
_OBJECT_END = b"}"
_OBJECT_EVENT_END = _OBJECT_END + _EVENT_END
_COMMENT = b":"
_NO_CHOICES = b'"choices":[]'
_CHOICE = b'"choices":[{'
_ERROR = b'data: {"error"'
_INDEX_BYTES = 12  # `"index":0,"d`: of a choice, by which the counts of several are kept apart
_COUNTED_EVERY = 16  # events
_OPENING = (b'"role":"assistant"', b'"content":""', b'"finish_reason":null')
_DROPPED = (b'"finish_reason":"abort"', b'"finish_reason":"error"')


Sign = Literal["nothing_yet", "dropped", "answering"]


class StreamRelay:
    """One streamed answer. Feed it what the engine sent; it returns what the client gets."""

    __slots__ = (
        "_all_counted",
        "_beginning",
        "_counts",
        "_counts_bytes",
        "_held",
        "_keep_counts",
        "_keep_usage",
        "_max_event_bytes",
        "_public_beginning",
        "_renaming",
        "_short_bytes",
        "_total",
        "done",
        "error",
        "events",
        "tokens",
    )

    def __init__(
        self, renaming: Renaming, keep_usage: bool, max_event_bytes: int, *, keep_counts: bool = False
    ) -> None:
        self._renaming = renaming
        self._keep_usage = keep_usage
        self._keep_counts = keep_counts
        self._max_event_bytes = max_event_bytes
        self._held: bytes | bytearray = b""
        self._beginning = b""  # of its events, up to the first choice
        self._public_beginning = b""  # the same for the client
        self._counts: dict[bytes, bytes] = {}  # by choice: its last usage, from `,"usage":` to the end of its event
        self._counts_bytes = 0  # of the longest of these that was seen to stand at an event's end
        self._all_counted = False  # every event since the first of these
        self._short_bytes = 0  # of an event without counts: one no longer than this has one token; 0: not known
        self._total: Usage | None = None  # as the last event tells it
        self.events = 0  # with choices
        self.tokens = 0  # of all choices: as told every so many events, and one an event since
        self.done = False  # `[DONE]` has passed: the answer is whole
        self.error: bytes | None = None  # the JSON of an error event, which is not passed on

    @property
    def passed(self) -> int:
        """Events that went out; nobody numbers them here."""
        return self.events

    @property
    def usage(self) -> Usage | None:
        """All that the engine has told, up to now; None: nothing."""
        if self._total is not None or not self._counts:
            return self._total
        prompt = completion = 0
        for counts in self._counts.values():
            told = counts_in(counts)
            prompt = max(prompt, told.prompt_tokens)
            completion += told.completion_tokens
        return usage_of(prompt, completion, 0)

    @property
    def is_counted(self) -> bool:
        """Whether the engine has told with the last event, so that `usage` is what was passed on."""
        return self._all_counted

    def feed(self, data: bytes) -> bytes:  # noqa: PLR0911 - each event of each stream passes: no calls of ours
        """What may go out now; BadAnswer when an event outgrows its bound or is none."""
        if self.done or self.error is not None:
            return b""  # nothing belongs after the end
        if self._held:
            data = self._with_held(data)
        if not data.endswith(_EVENT_END):
            data = self._hold_back(data)
            if not data:
                return b""
        beginning = self._beginning
        if beginning and data.startswith(beginning) and data.endswith(_OBJECT_EVENT_END):
            length = len(beginning)
            if data.find(b"\n", length) != len(data) - len(_EVENT_END):
                return self._several(data) or self._event_by_event(data)
            counts_at = data.rfind(COUNTS, length)  # one event a read: what most reads are
            if counts_at < 0:
                self.events += 1
                self.tokens += 1 if len(data) <= self._short_bytes else self._tokens_in(data)
                self._all_counted = False
                return self._public_beginning + data[length:]
            if len(data) - counts_at <= self._counts_bytes or self._ends_with_counts(data[counts_at:]):
                self.events += 1
                self.tokens += 1
                self._counts[data[length : length + _INDEX_BYTES]] = data[counts_at:]
                if not self.events % _COUNTED_EVERY:
                    self._recount()
                if self._keep_counts:
                    return self._public_beginning + data[length:]
                return self._public_beginning + data[length:counts_at] + _OBJECT_EVENT_END
        return self._event_by_event(data)

    def _ends_with_counts(self, end: bytes) -> bool:
        """Whether nothing but a usage stands here; asked of one that is longer than those before."""
        if end[end.find(b"}") :] not in COUNTS_ENDS:
            return False
        self._counts_bytes, self._all_counted = len(end), True
        return True

    def _recount(self) -> None:
        usage = self.usage
        if usage is not None:
            self.tokens = max(self.tokens, usage.completion_tokens)

    def _tokens_in(self, event: bytes) -> int:
        """Of an event without counts; `event` may have its end, or not."""
        text_bytes = text_bytes_in(event)
        if self._short_bytes == 0 and text_bytes > 0:
            self._short_bytes = len(event) - text_bytes + LONG_TOKEN_BYTES
        return tokens_of_text(text_bytes)

    def _with_held(self, data: bytes) -> bytes:
        """All that has not gone out; nothing while its first event has not ended: a long one is copied once, not often.

        What has no line end of its own ends no event.
        """
        if b"\n" in data:
            data, self._held = bytes(self._held + data), b""
            return data
        if type(self._held) is bytes:
            self._held = bytearray(self._held)
        self._held += data
        self._bound(self._held)
        return b""

    def _hold_back(self, data: bytes) -> bytes:
        """Up to the end of the last event; the rest is kept."""
        if not data:
            return b""
        whole = data.rfind(_EVENT_END) + len(_EVENT_END)
        if whole < len(_EVENT_END):
            whole = 0
        self._held = data[whole:]
        self._bound(self._held)
        return data[:whole]

    def _bound(self, held: bytes | bytearray) -> None:
        if len(held) > self._max_event_bytes:
            raise outgrown(held.startswith(_OBJECT), self._max_event_bytes)

    def _several(self, data: bytes) -> bytes:
        """Events of one read that all begin as the last one did; nothing where one of them does not."""
        beginning, length, start = self._beginning, len(self._beginning), 0
        rests: list[bytes] = []
        counts: dict[bytes, bytes] = {}
        tokens = 0
        while start < len(data):
            line_end = data.find(b"\n", start + length)  # one byte is sought seven times faster than two
            end = line_end + len(_EVENT_END)
            if not data.startswith(beginning, start) or data[line_end - 1 : end] != _OBJECT_EVENT_END:
                return b""
            at = start + length
            counts_at = data.rfind(COUNTS, at, end)
            tokens += 1
            if counts_at < 0:
                self._all_counted = False
                if end - start > self._short_bytes:
                    tokens += self._tokens_in(data[start:end]) - 1
                rests.append(data[at:end])
            elif end - counts_at <= self._counts_bytes or self._ends_with_counts(data[counts_at:end]):
                counts[data[at : at + _INDEX_BYTES]] = data[counts_at:end]
                rests.append(data[at:end] if self._keep_counts else data[at:counts_at] + _OBJECT_EVENT_END)
            else:
                return b""
            start = end
        before, self.events = self.events, self.events + len(rests)
        self.tokens += tokens
        self._counts |= counts
        if counts and before // _COUNTED_EVERY != self.events // _COUNTED_EVERY:
            self._recount()
        return self._public_beginning + self._public_beginning.join(rests)

    def _learn(self, event: bytes) -> None:
        """How events of this answer begin, if that is where the model's name is."""
        length = event.find(_CHOICE) + len(_CHOICE)
        beginning, rest = event[:length], event[length:]
        public = self._renaming.fields(beginning)
        is_all = len(beginning) >= len(_CHOICE) and self._renaming.fields(rest) == rest
        if is_all and (public != beginning or not self._renaming.needed):
            self._beginning, self._public_beginning = beginning, public

    def _event_by_event(self, data: bytes) -> bytes:
        passed = []
        for event in data.split(_EVENT_END)[:-1]:
            if self.done or self.error is not None:
                break  # nothing belongs after the end
            if event.startswith(_ERROR):
                self.error = event[len(b"data: ") :]
            elif event == _DONE:
                self.done = True
                passed.append(event + _EVENT_END)
            elif event.startswith(_COMMENT):
                passed.append(event + _EVENT_END)
            elif not (event.startswith(_OBJECT) and event.endswith(_OBJECT_END)):
                raise BadAnswer("an event that is no JSON object")
            elif not self._is_usage(event):
                passed.append(self._look_at(event) + _EVENT_END)
            elif self._keep_usage:
                passed.append(event + _EVENT_END)
        return self._renaming.fields(b"".join(passed))

    def _look_at(self, event: bytes) -> bytes:
        """An event with choices: learn how it begins, and take out what it counts."""
        self._learn(event)
        self.events += 1
        try:
            usage, rest = taken_apart(event) if COUNTS in event else (None, event)
        except orjson.JSONDecodeError as error:
            raise BadAnswer("an event that is not JSON") from error
        if usage is None:
            self.tokens += self._tokens_in(event + _EVENT_END)
            self._all_counted = False
            return event
        at = event.find(_CHOICE) + len(_CHOICE)
        self._counts[event[at : at + _INDEX_BYTES]] = COUNTS[:-1] + orjson.dumps(usage) + _OBJECT_EVENT_END
        self._all_counted = True
        self.tokens += 1
        self._recount()
        return event if self._keep_counts else rest

    def _is_usage(self, event: bytes) -> bool:
        if _NO_CHOICES not in event:
            return False
        usage = read_usage(event.removeprefix(b"data: "))
        if usage is not None:
            self._total = usage
            self.tokens = max(self.tokens, usage.completion_tokens)
        return usage is not None


def first_sign(events: bytes) -> Sign:
    """What the first events of a stream say.

    A chat begins with a role and no text, in an event of its own, even where the engine then drops the request before
    its first token (it is draining): until something else has come, the request may still go elsewhere.
    """
    for event in events.split(_EVENT_END):
        if any(mark in event for mark in _DROPPED):
            return "dropped"
        if event and event != _DONE and not event.startswith(_COMMENT) and not all(mark in event for mark in _OPENING):
            return "answering"
    return "nothing_yet"
