"""An engine's answer on its way to the client: pure, bytes in, bytes out.

A stream passes event by event and is never parsed: what arrives as whole events goes out as the same bytes, but for
the model's name, which every event carries and which the client knows by another name. An event that arrives in
pieces waits for its end, so that a replica lost in mid-event leaves no half event behind.

Why a plain replacement is safe: inside a JSON string every quote is escaped, so the bytes `"model":"<engine name>"`
cannot come from generated text, only from the field itself.
"""

from typing import Any, Literal

import msgspec
import orjson

_EVENT_END = b"\n\n"
_DONE = b"data: [DONE]"
_OBJECT = b"data: {"
_OBJECT_END = b"}"
_OBJECT_EVENT_END = _OBJECT_END + _EVENT_END
_NEXT_OBJECT = _OBJECT_EVENT_END + _OBJECT
_COMMENT = b":"
_NO_CHOICES = b'"choices":[]'
_ERROR = b'data: {"error"'
_OPENING = (b'"role":"assistant"', b'"content":""', b'"finish_reason":null')
_DROPPED = (b'"finish_reason":"abort"', b'"finish_reason":"error"')


Sign = Literal["nothing_yet", "dropped", "answering"]


class BadAnswer(Exception):
    """The engine's answer is not what it should be; the request may be tried elsewhere if nothing was sent."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens as the engine counted them; clamped, since an absurd count must not reach an account."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class _WithUsage(msgspec.Struct):
    usage: dict[str, Any] | None = None


_usage_decoder = msgspec.json.Decoder(_WithUsage)
_MAX_TOKENS = 10_000_000


def read_usage(document: bytes) -> Usage | None:
    """The usage of a JSON answer or event, or None where it has none."""
    try:
        return _usage_in(_usage_decoder.decode(document).usage)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _usage_in(usage: Any) -> Usage | None:
    if type(usage) is not dict:
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if type(details) is dict else 0
    return usage_of(usage.get("prompt_tokens"), usage.get("completion_tokens"), cached)


def usage_of(prompt: Any, completion: Any, cached: Any) -> Usage:
    """Counts as an engine wrote them, whatever they are."""
    return Usage(_clamped(prompt), _clamped(completion), _clamped(cached))


def _clamped(tokens: Any) -> int:
    return min(max(tokens, 0), _MAX_TOKENS) if type(tokens) is int else 0


class Renaming:
    """The engine's name for a model, replaced by the name that the client asked for."""

    __slots__ = ("_engine_field", "_engine_name", "_public_field", "_requested", "needed")

    def __init__(self, engine_name: str, requested: str) -> None:
        self.needed = engine_name != requested
        self._engine_field = b'"model":' + orjson.dumps(engine_name)
        self._public_field = b'"model":' + orjson.dumps(requested)
        self._engine_name, self._requested = engine_name, requested

    def fields(self, data: bytes) -> bytes:
        return data.replace(self._engine_field, self._public_field) if self.needed else data

    def everywhere(self, data: bytes) -> bytes:
        """For error texts, which name the model in prose."""
        return data.replace(self._engine_name.encode(), self._requested.encode()) if self.needed else data


class StreamRelay:
    """One streamed answer. Feed it what the engine sent; it returns what the client gets."""

    __slots__ = ("_held", "_keep_usage", "_max_event_bytes", "_renaming", "done", "error", "events", "usage")

    def __init__(self, renaming: Renaming, keep_usage: bool, max_event_bytes: int) -> None:
        self._renaming = renaming
        self._keep_usage = keep_usage
        self._max_event_bytes = max_event_bytes
        self._held = b""
        self.events = 0  # with choices, so about one a token
        self.usage: Usage | None = None
        self.done = False  # `[DONE]` has passed: the answer is whole
        self.error: bytes | None = None  # the JSON of an error event, which is not passed on

    def feed(self, data: bytes) -> bytes:
        """What may go out now; BadAnswer when an event outgrows its bound or is none."""
        if self.done or self.error is not None:
            return b""  # nothing belongs after the end
        if self._held:
            data = self._held + data
            self._held = b""
        ends_in_object = data.endswith(_OBJECT_EVENT_END)
        if ends_in_object and data.startswith(_OBJECT) and data.find(_EVENT_END) == len(data) - len(_EVENT_END):
            if _NO_CHOICES in data or data.startswith(_ERROR):
                return self._event_by_event(data)
            self.events += 1  # one event a read: what most reads are
            return self._renaming.fields(data)
        if not ends_in_object and not data.endswith(_EVENT_END):
            data = self._hold_back(data)
            if not data:
                return b""
            ends_in_object = data.endswith(_OBJECT_EVENT_END)
        events = data.count(_EVENT_END)
        plain = ends_in_object and data.startswith(_OBJECT) and data.count(_NEXT_OBJECT) == events - 1
        if not plain or _NO_CHOICES in data or _ERROR in data:
            return self._event_by_event(data)
        self.events += events
        return self._renaming.fields(data)

    def _hold_back(self, data: bytes) -> bytes:
        whole = data.rfind(_EVENT_END) + len(_EVENT_END)
        if whole < len(_EVENT_END):
            whole = 0
        if len(data) - whole > self._max_event_bytes:
            raise BadAnswer(f"an event of over {self._max_event_bytes} bytes")
        self._held = data[whole:]
        return data[:whole]

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
                self.events += 1
                passed.append(event + _EVENT_END)
            elif self._keep_usage:
                passed.append(event + _EVENT_END)
        return self._renaming.fields(b"".join(passed))

    def _is_usage(self, event: bytes) -> bool:
        if _NO_CHOICES not in event:
            return False
        usage = read_usage(event.removeprefix(b"data: "))
        if usage is not None:
            self.usage = usage
        return usage is not None


class WholeAnswer(msgspec.Struct, frozen=True):
    body: bytes
    usage: Usage | None
    aborted: bool  # finish_reason abort (or error) and no token: the engine was draining


def whole_answer(body: bytes, renaming: Renaming) -> WholeAnswer:
    """A non-streamed answer, checked to be one JSON object; BadAnswer otherwise."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadAnswer("not JSON") from error
    if type(parsed) is not dict:
        raise BadAnswer("not a JSON object")
    usage = _usage_in(parsed.get("usage"))
    produced = usage is not None and usage.completion_tokens > 0
    return WholeAnswer(renaming.fields(body), usage, aborted=not produced and _finished_by_abort(parsed))


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


def engine_error(body: bytes) -> tuple[str, str | None]:
    """Message and param of an engine's error body, whatever its shape."""
    try:
        error: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return "", None
    if type(error) is dict:
        error = error.get("error", error)
    if type(error) is dict:
        message, param = error.get("message"), error.get("param")
        return (message if type(message) is str else ""), (param if type(param) is str else None)
    return (error if type(error) is str else ""), None


def _finished_by_abort(parsed: dict[str, Any]) -> bool:
    choices = parsed.get("choices")
    if type(choices) is not list or not choices:
        return False
    return all(type(choice) is dict and choice.get("finish_reason") in ("abort", "error") for choice in choices)
