"""Parse an engine's answer: its token usage, its model name, and its error.

This module is pure. `relay` and `named_events` pass streams on with the same usage, renaming and errors. Engine
output is not trusted: counts are clamped, and a body that is not a JSON object is a `BadAnswer`.
"""

from functools import lru_cache
from typing import Any

import msgspec
import orjson

_MAX_TOKENS = 10_000_000
_LARGE_BYTES = 64 * 1024
_RENAMINGS = 4096


class BadAnswer(Exception):
    """Malformed answer of an engine. The request may be retried elsewhere if the client has received nothing."""


class AnswerTooLarge(BadAnswer):
    """Well-formed answer over the size limit. A retry would not help, because another replica's would be as large."""


def event_too_large(is_event: bool, bound_bytes: int) -> BadAnswer:
    """Return the error for an unfinished event over the bound. Without `is_event` the bytes are not an answer
    at all."""
    why = f"an event of over {bound_bytes} bytes"
    return AnswerTooLarge(why) if is_event else BadAnswer(why)


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts of the engine, clamped so that an absurd count cannot reach an account."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class _WithUsage(msgspec.Struct):
    usage: dict[str, Any] | None = None


class _Whole(msgspec.Struct):
    """Large answer, decoded without objects for its contents. These would need eight times its size and block the
    loop."""

    usage: Any = None
    choices: msgspec.Raw = msgspec.Raw(b"null")


class _Choice(msgspec.Struct):
    finish_reason: Any = None


_whole_decoder = msgspec.json.Decoder(_Whole)
_choices_decoder = msgspec.json.Decoder(list[_Choice])
_usage_decoder = msgspec.json.Decoder(_WithUsage)


def read_usage(document: bytes) -> Usage | None:
    """Return the usage of a JSON answer or event, or None if it has none or is not valid JSON."""
    try:
        return usage_in(_usage_decoder.decode(document).usage)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def usage_in(usage: Any) -> Usage | None:
    """Return the usage in the value of a `usage` field, or None if the value is not an object."""
    if type(usage) is not dict:
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if type(details) is dict else 0
    return usage_of(usage.get("prompt_tokens"), usage.get("completion_tokens"), cached)


def usage_of(prompt: Any, completion: Any, cached: Any) -> Usage:
    """Return a `Usage` of an engine's raw counts, which may have any type or value; wrong ones are clamped."""
    if (
        type(prompt) is type(completion) is type(cached) is int
        and 0 <= prompt <= _MAX_TOKENS
        and 0 <= completion <= _MAX_TOKENS
        and 0 <= cached <= _MAX_TOKENS
    ):
        return Usage(prompt, completion, cached)
    return Usage(_clamped(prompt), _clamped(completion), _clamped(cached))


def _clamped(tokens: Any) -> int:
    return min(max(tokens, 0), _MAX_TOKENS) if type(tokens) is int else 0


class Renaming:
    """Replacement of the engine's model name by the name that the client requested."""

    __slots__ = ("_engine_field", "_engine_name", "_public_field", "_requested", "needed")

    def __init__(self, engine_name: str, requested: str) -> None:
        self.needed = engine_name != requested
        self._engine_field = b'"model":' + orjson.dumps(engine_name)
        self._public_field = b'"model":' + orjson.dumps(requested)
        self._engine_name, self._requested = engine_name, requested

    def rename_fields(self, data: bytes) -> bytes:
        return data.replace(self._engine_field, self._public_field) if self.needed else data

    def rename_text(self, data: bytes) -> bytes:
        """Replace the engine's name by the requested one anywhere in the text: errors contain it in prose."""
        return data.replace(self._engine_name.encode(), self._requested.encode()) if self.needed else data


@lru_cache(_RENAMINGS)
def renaming_of(engine_name: str, requested: str) -> Renaming:
    """Return the renaming for a model, shared by all of its requests."""
    return Renaming(engine_name, requested)


class WholeAnswer(msgspec.Struct, frozen=True):
    body: bytes
    usage: Usage | None
    aborted: bool  # finish_reason is abort or error and no token came: the engine was draining


def whole_answer(body: bytes, renaming: Renaming) -> WholeAnswer:
    """Return a non-streamed answer with the requested model name. Raise BadAnswer if it is not one JSON object."""
    if len(body) > _LARGE_BYTES:
        return _large_answer(body, renaming)
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadAnswer("not JSON") from error
    if type(parsed) is not dict:
        raise BadAnswer("not a JSON object")
    usage = usage_in(parsed.get("usage"))
    produced = usage is not None and usage.completion_tokens > 0
    return WholeAnswer(renaming.rename_fields(body), usage, aborted=not produced and _finished_by_abort(parsed))


def _large_answer(body: bytes, renaming: Renaming) -> WholeAnswer:
    try:
        parsed = _whole_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadAnswer("not a JSON object") from error
    usage = usage_in(parsed.usage)
    produced = usage is not None and usage.completion_tokens > 0
    return WholeAnswer(renaming.rename_fields(body), usage, aborted=not produced and _all_aborted(parsed.choices))


def _all_aborted(choices: msgspec.Raw) -> bool:
    try:
        found = _choices_decoder.decode(choices)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return bool(found) and all(choice.finish_reason in ("abort", "error") for choice in found)


def engine_error(body: bytes) -> tuple[str, str | None]:
    """Return the message ("" if there is none) and the param of an engine's error body of any shape."""
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
