"""Relay of an engine's streamed answer to the client: pure, bytes in, bytes out. `answers` handles whole answers.

A stream passes event by event and is not parsed. Whole events are passed on as the same bytes except for the model's
name, which every event contains and which is different for the client. A partial event waits for its end, so that a
replica lost in the middle of an event leaves no partial event behind.

Replacing the name as bytes is safe: inside a JSON string every quote is escaped, so the bytes `"model":"<engine
name>"` can come only from the field, never from generated text.

All events of one answer begin with the same bytes (id, time, model) up to their first choice. The beginning is parsed
once and then compared, which is one memcmp instead of three searches. An event that begins differently is parsed.

The engine counts tokens, because one event may have any number of them (`stream_interval`, speculation, a busy
engine). Each event reports the usage of its choice so far. The relay removes that usage unless the caller requested
it. It reads the usage every few events and at the end. An interrupted answer is thus charged
for what was generated (`event_counts`, also for engines that report no usage).
"""

from typing import Literal

import orjson

from functions.gateway.request.answers import BadAnswer, Renaming, Usage, event_too_large, read_usage, usage_of
from functions.gateway.request.event_counts import (
    COUNTS,
    COUNTS_ENDS,
    LONG_TOKEN_BYTES,
    counts_in,
    split_off_usage,
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
_INDEX_BYTES = 12  # `"index":0,"d`: identifies the choice, so that counts of several choices are kept apart
_COUNTED_EVERY = 16  # events
_OPENING = (b'"role":"assistant"', b'"content":""', b'"finish_reason":null')
_DROPPED = (b'"finish_reason":"abort"', b'"finish_reason":"error"')


Sign = Literal["nothing_yet", "dropped", "answering"]


class StreamRelay:
    """One streamed answer: `feed` receives the engine's bytes and returns the client's."""

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
        self._beginning = b""  # common beginning of the events, up to the first choice
        self._public_beginning = b""  # the beginning with the client's model name
        self._counts: dict[bytes, bytes] = {}  # last usage of each choice, from `,"usage":` to the end of its event
        self._counts_bytes = 0  # length of the longest usage that was seen at an event's end
        self._all_counted = False  # True if every event since the first usage had one
        self._short_bytes = 0  # longest event without counts that has one token; 0: unknown
        self._total: Usage | None = None  # usage in the last event
        self.events = 0  # events with choices
        self.tokens = 0  # tokens of all choices: the last reading of the usage, plus one per event since
        self.done = False  # `[DONE]` has passed: the answer is complete
        self.error: bytes | None = None  # JSON of an error event, which is not passed on

    @property
    def passed(self) -> int:
        """Number of events with choices that were passed on. This dialect does not number events."""
        return self.events

    @property
    def usage(self) -> Usage | None:
        """Usage that the engine has reported so far, or None."""
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
        """True if the engine reported usage with the last event, so that `usage` covers everything passed on."""
        return self._all_counted

    def feed(self, data: bytes) -> bytes:  # noqa: PLR0911 - each event of each stream passes: no calls of ours
        """Take in the engine's bytes; return those that may be sent now: whole events, renamed and without usage.

        Raise BadAnswer if an event is malformed or over the bound.
        """
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
            counts_at = data.rfind(COUNTS, length)  # most reads have one event
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
        """Return True if `end` is only a usage, and accept this length from now on: it is longer than those before."""
        if end[end.find(b"}") :] not in COUNTS_ENDS:
            return False
        self._counts_bytes, self._all_counted = len(end), True
        return True

    def _recount(self) -> None:
        usage = self.usage
        if usage is not None:
            self.tokens = max(self.tokens, usage.completion_tokens)

    def _tokens_in(self, event: bytes) -> int:
        """Return the estimated tokens, at least 1, of an event without counts. `event` may include its end."""
        text_bytes = text_bytes_in(event)
        if self._short_bytes == 0 and text_bytes > 0:
            self._short_bytes = len(event) - text_bytes + LONG_TOKEN_BYTES
        return tokens_of_text(text_bytes)

    def _with_held(self, data: bytes) -> bytes:
        """Return everything not yet passed on, or nothing while its first event is unfinished, so that a long event
        is copied once.

        Data without a line end cannot end an event.
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
        """Return the data up to the end of the last whole event and hold back the rest, which may not be too large."""
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
            raise event_too_large(held.startswith(_OBJECT), self._max_event_bytes)

    def _several(self, data: bytes) -> bytes:
        """Count the events of one read and return what is passed on, if all begin like the last one, else nothing."""
        beginning, length, start = self._beginning, len(self._beginning), 0
        rests: list[bytes] = []
        counts: dict[bytes, bytes] = {}
        tokens = 0
        while start < len(data):
            line_end = data.find(b"\n", start + length)  # searching for one byte is seven times faster than for two
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

    def _remember_beginning(self, event: bytes) -> None:
        """Remember how the events of this answer begin, if the model's name occurs only there."""
        length = event.find(_CHOICE) + len(_CHOICE)
        beginning, rest = event[:length], event[length:]
        public = self._renaming.rename_fields(beginning)
        is_all = len(beginning) >= len(_CHOICE) and self._renaming.rename_fields(rest) == rest
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
                passed.append(self._count_event(event) + _EVENT_END)
            elif self._keep_usage:
                passed.append(event + _EVENT_END)
        return self._renaming.rename_fields(b"".join(passed))

    def _count_event(self, event: bytes) -> bytes:
        """Count an event with choices, remember how it begins, and return it without its usage."""
        self._remember_beginning(event)
        self.events += 1
        try:
            usage, rest = split_off_usage(event) if COUNTS in event else (None, event)
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
    """Return "answering" if the first events contain an answer, "dropped" if the engine aborted, else "nothing_yet".

    A chat begins with an event that has a role and no text, even if the engine then drops the request because it is
    draining. Until another event has come, the request can still move to another replica.
    """
    for event in events.split(_EVENT_END):
        if any(mark in event for mark in _DROPPED):
            return "dropped"
        if event and event != _DONE and not event.startswith(_COMMENT) and not all(mark in event for mark in _OPENING):
            return "answering"
    return "nothing_yet"
