"""Chat answers and their events in a model's format: read for what the gateway needs, written where it changes them.

Pure: bytes and objects in and out. Only choice 0 is read, because a conversation continues with one answer.
"""

from dataclasses import dataclass, field
from typing import Any

import orjson

from functions.gateway.intake.json_body import JsonObject

_DONE = b"data: [DONE]\n\n"
_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


def message_in(answer: JsonObject) -> JsonObject | None:
    """Return the message of a complete answer's first choice in a form that models accept, or None if there is none."""
    choices = answer.get("choices")
    first = choices[0] if type(choices) is list and choices else None
    message = first.get("message") if type(first) is dict else None
    return _as_prompt_message(message) if type(message) is dict else None


def with_usage(answer: JsonObject, earlier: dict[str, int]) -> JsonObject:
    """Return the answer with the token counts of earlier rounds added to its usage; unchanged if it has no usage."""
    usage = answer.get("usage")
    if type(usage) is not dict:
        return answer
    return {**answer, "usage": {**usage, **{name: _count(usage, name) + earlier.get(name, 0) for name in _COUNTS}}}


def add_usage(total: dict[str, int], answer: JsonObject) -> None:
    usage = answer.get("usage")
    if type(usage) is dict:
        for name in _COUNTS:
            total[name] = total.get(name, 0) + _count(usage, name)


def as_events(answer: JsonObject, include_usage: bool) -> bytes:
    """Convert a complete answer to a stream's events: for each choice its opening, message and end, then `[DONE]`."""
    head = {name: answer.get(name) for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    events = []
    for choice in answer.get("choices") or ():
        message = choice.get("message") or {}
        index, calls = choice.get("index", 0), message.get("tool_calls")
        more = {name: value for name, value in message.items() if value and name not in ("role", "tool_calls")}
        delta: JsonObject = {"content": "", **more}
        if calls:
            delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
        events += [
            _chunk(head, index, {"role": "assistant", "content": ""}, None),
            _chunk(head, index, delta, None, choice.get("logprobs")),
            _chunk(head, index, {}, choice.get("finish_reason")),
        ]
    if include_usage and answer.get("usage"):
        events.append({**head, "choices": [], "usage": answer["usage"]})
    return b"".join(b"data: %b\n\n" % orjson.dumps(event) for event in events) + _DONE


@dataclass(slots=True)
class StreamedAnswer:
    """Reassembles a streamed answer from complete events. An answer with an unreadable event is not stored."""

    finished: bool = False
    _garbled: bool = False
    _text: list[str] = field(default_factory=list)
    _calls: dict[int, JsonObject] = field(default_factory=dict)

    def add_events(self, events: bytes) -> None:
        for event in events.split(b"\n\n"):
            if event == b"data: [DONE]":
                self.finished = not self._garbled
            elif event.startswith(b"data: {") and not self._garbled:
                self._read(event[len(b"data: ") :])

    @property
    def message(self) -> JsonObject:
        said: JsonObject = {"role": "assistant", "content": "".join(self._text)}
        if self._calls:
            said["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        return said

    def _read(self, data: bytes) -> None:
        try:
            self._delta(orjson.loads(data))
        except (orjson.JSONDecodeError, AttributeError, TypeError):
            self._garbled = True

    def _delta(self, event: JsonObject) -> None:
        for choice in event.get("choices") or ():
            delta = choice.get("delta") if choice.get("index", 0) == 0 else None
            if type(delta) is not dict:
                continue
            if type(delta.get("content")) is str:
                self._text.append(delta["content"])
            for call in delta.get("tool_calls") or ():
                self._call(call)

    def _call(self, delta: JsonObject) -> None:
        """Add a streamed piece to the tool call of its index: first come id and name, then pieces of the arguments."""
        known = self._calls.setdefault(
            delta.get("index", 0), {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        known["id"] = delta.get("id") or known["id"]
        function = delta.get("function") or {}
        known["function"]["name"] += function.get("name") or ""
        known["function"]["arguments"] += function.get("arguments") or ""


def _as_prompt_message(message: JsonObject) -> JsonObject:
    """Return an assistant message with the answer's content ("" if none) and tool calls only.

    Chat templates reject other fields that answers have.
    """
    said: JsonObject = {"role": "assistant", "content": message.get("content") or ""}
    if message.get("tool_calls"):
        said["tool_calls"] = message["tool_calls"]
    return said


def _chunk(head: JsonObject, index: int, delta: JsonObject, finish_reason: Any, logprobs: Any = None) -> JsonObject:
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
    return {**head, "choices": [choice]}


def _count(usage: JsonObject, name: str) -> int:
    value = usage.get(name)
    return value if type(value) is int else 0
