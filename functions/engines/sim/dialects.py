"""/v1/responses and /v1/messages on top of chat: request bodies, whole answers and named events as vLLM 0.32 writes
them.

As in vLLM, both APIs are translated to chat: a body becomes a ChatBody, and the reply is written in the API's format.
Only text is supported; tool calls exist in chat only.
"""

from collections.abc import Sequence
from typing import Any

import orjson
from pydantic import Field

from functions.engines.sim.progress import Envelope, Progress
from functions.engines.sim.protocol import Body, ChatBody, ContentPart, Message

_STOP_REASONS = {"length": "max_tokens", "stop": "end_turn"}


class ResponsesBody(Body):
    model: str | None = None
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = False
    store: bool | None = True
    cache_salt: str | None = None
    priority: int = 0
    request_id: str | None = None

    def as_chat(self) -> ChatBody:
        system = [Message(role="system", content=self.instructions)] if self.instructions else []
        items = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        return ChatBody(
            model=self.model,
            messages=[*system, *(_message(item) for item in items if "role" in item)],
            max_tokens=self.max_output_tokens,
            cache_salt=self.cache_salt,
            priority=self.priority,
        )


class MessagesBody(Body):
    model: str
    messages: list[dict[str, Any]]
    max_tokens: int = Field(16, gt=0)
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = False
    cache_salt: str | None = None

    def as_chat(self) -> ChatBody:
        system = [_message({"role": "system", "content": self.system})] if self.system else []
        return ChatBody(
            model=self.model,
            messages=[*system, *map(_message, self.messages)],
            max_tokens=self.max_tokens,
            stop=self.stop_sequences,
            cache_salt=self.cache_salt,
        )


def _message(item: dict[str, Any]) -> Message:
    content = item.get("content")
    if isinstance(content, list):
        return Message(role=item["role"], content=[ContentPart(text=str(part.get("text") or "")) for part in content])
    return Message(role=item["role"], content=content)


def named(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), orjson.dumps(event))


class ResponseEvents:
    """Writer of a streamed response."""

    def __init__(self, envelope: Envelope, body: ResponsesBody) -> None:
        self._envelope, self._body = envelope, body
        self._item = {"id": f"msg_{envelope.request_id}", "type": "message", "role": "assistant"}
        self._place = {"item_id": self._item["id"], "output_index": 0, "content_index": 0}
        self._sequence = 0

    def opening(self, replies: Sequence[Progress]) -> bytes:
        begun = response_body(self._envelope, self._body, 0, (), status="in_progress")
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return b"".join(
            (
                self._event("response.created", response=begun),
                self._event("response.in_progress", response=begun),
                self._event(
                    "response.output_item.added",
                    output_index=0,
                    item={**self._item, "status": "in_progress", "content": []},
                ),
                self._event("response.content_part.added", part=part, **self._place),
            )
        )

    def tokens(self, reply: Progress, start: int, end: int) -> bytes:
        delta = "".join(reply.plan.deltas[start:end])
        return self._event("response.output_text.delta", delta=delta, logprobs=[], **self._place)

    def closing(self, prompt_tokens: int, replies: Sequence[Progress]) -> bytes:
        text = replies[0].text
        item = _item(self._envelope, text)
        done = response_body(self._envelope, self._body, prompt_tokens, replies, status=_status(replies[0]))
        last = "response.completed" if done["status"] == "completed" else "response.incomplete"
        return b"".join(
            (
                self._event("response.output_text.done", text=text, logprobs=[], **self._place),
                self._event("response.content_part.done", part=item["content"][0], **self._place),
                self._event("response.output_item.done", output_index=0, item=item),
                self._event(last, response=done),
            )
        )

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {**fields, "sequence_number": self._sequence, "type": kind}
        self._sequence += 1
        return named(event)


def response_body(
    envelope: Envelope, body: ResponsesBody, prompt_tokens: int, replies: Sequence[Progress], *, status: str
) -> dict[str, Any]:
    cut = status == "incomplete"
    return {
        "id": envelope.request_id,
        "created_at": envelope.created_s,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": body.instructions,
        "metadata": None,
        "model": envelope.model,
        "object": "response",
        "output": [_item(envelope, reply.text) for reply in replies],
        "parallel_tool_calls": True,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "background": False,
        "max_output_tokens": body.max_output_tokens,
        "previous_response_id": None,
        "service_tier": "auto",
        "status": status,
        "text": None,
        "truncation": "disabled",
        "usage": _responses_usage(prompt_tokens, replies) if replies else None,
        "user": None,
    }


def _item(envelope: Envelope, text: str) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": None}
    return {
        "id": f"msg_{envelope.request_id}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def _status(reply: Progress) -> str:
    return "incomplete" if reply.finish_reason == "length" else "completed"


def whole_response(
    envelope: Envelope, body: ResponsesBody, prompt_tokens: int, replies: Sequence[Progress]
) -> dict[str, Any]:
    return response_body(envelope, body, prompt_tokens, replies, status=_status(replies[0]))


def _responses_usage(prompt_tokens: int, replies: Sequence[Progress]) -> dict[str, Any]:
    written = sum(reply.tokens for reply in replies)
    cached = replies[0].seq.cached_tokens if replies[0].seq else 0
    return {
        "input_tokens": prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt_tokens + written,
    }


class MessageEvents:
    """Writer of a streamed message."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope

    def opening(self, replies: Sequence[Progress]) -> bytes:
        message: dict[str, Any] = {
            "id": self._envelope.request_id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self._envelope.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _messages_usage(len(replies[0].choice.prompt.ids), 0, None),
        }
        block = {"type": "text", "text": ""}
        return named({"type": "message_start", "message": message}) + named(
            {"type": "content_block_start", "content_block": block, "index": 0}
        )

    def tokens(self, reply: Progress, start: int, end: int) -> bytes:
        text = "".join(reply.plan.deltas[start:end])
        delta = {"type": "text_delta", "text": text}
        return named({"type": "content_block_delta", "delta": delta, "index": 0}) if text else b""

    def closing(self, prompt_tokens: int, replies: Sequence[Progress]) -> bytes:
        reply = replies[0]
        usage = _messages_usage(prompt_tokens, reply.tokens, reply if self._envelope.prompt_token_details else None)
        return b"".join(
            (
                named({"type": "content_block_stop", "index": 0}),
                named({"type": "message_delta", "delta": _stopped(reply), "usage": usage}),
                named({"type": "message_stop"}),
            )
        )


def whole_message(envelope: Envelope, prompt_tokens: int, replies: Sequence[Progress]) -> dict[str, Any]:
    reply = replies[0]
    return {
        "id": envelope.request_id,
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": reply.text}],
        "model": envelope.model,
        **_stopped(reply),
        "usage": _messages_usage(prompt_tokens, reply.tokens, reply if envelope.prompt_token_details else None),
    }


def _stopped(reply: Progress) -> dict[str, Any]:
    if isinstance(reply.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": reply.stop_reason}
    return {"stop_reason": _STOP_REASONS.get(reply.finish_reason or ""), "stop_sequence": None}


def _messages_usage(prompt_tokens: int, written: int, detailed: Progress | None) -> dict[str, int]:
    """Return the usage. Cached tokens are listed separately from `input_tokens` if the engine reports them."""
    if detailed is None or detailed.seq is None:
        return {"input_tokens": prompt_tokens, "output_tokens": written}
    read, created = detailed.seq.cached_tokens, detailed.seq.created_cache_tokens
    return {
        "input_tokens": max(0, prompt_tokens - read - created),
        "output_tokens": written,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": created,
    }
