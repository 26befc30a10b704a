"""Stream events as bytes, field for field as vLLM 0.32 writes them.

The common event (one token, and no option but its count) is a JSON string between constants: at 20,000 tokens a
second there is no time to build dictionaries. All other events use the general path.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from functions.engines.sim.bodies import chat_logprobs, completion_logprobs, final_chunk_usage, plain_usage
from functions.engines.sim.progress import Envelope, Progress

DONE = b"data: [DONE]\n\n"
_END = b"}\n\n"
_COUNTED_END = b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}\n\n'
_COUNTED_CHAT_END = _COUNTED_END.replace(b"}}", b',"completion_tokens_details":null}}')


@dataclass(frozen=True, slots=True)
class StreamOptions:
    usage: bool = False
    continuous_usage: bool = False
    token_ids: bool = False
    logprobs: int | None = None
    echo: bool = False

    @property
    def plain(self) -> bool:
        return not (self.token_ids or self.echo) and self.logprobs is None


class Chunks(Protocol):
    """Writer of one kind of stream."""

    def opening(self, replies: Sequence[Progress]) -> bytes:
        """Return the bytes sent with the first token of the request."""
        ...

    def tokens(self, reply: Progress, start: int, end: int) -> bytes:
        """Return tokens `start` to `end` of a reply as one event."""
        ...

    def closing(self, prompt_tokens: int, replies: Sequence[Progress]) -> bytes: ...


class ChatChunks:
    def __init__(self, envelope: Envelope, options: StreamOptions) -> None:
        self._envelope = envelope
        self._options = options
        self._head = _head(envelope, "chat.completion.chunk")
        self._tail = b'},"logprobs":null,"finish_reason":null,"token_ids":null}]'

    def opening(self, replies: Sequence[Progress]) -> bytes:
        return b"".join(self._role(reply) for reply in replies)

    def tokens(self, reply: Progress, start: int, end: int) -> bytes:
        last = reply.finished and end == reply.tokens
        text = _text(reply, start, end)
        if self._options.plain and not last:
            count = self._count(reply, end)
            event = b'%b{"index":%d,"delta":{"content":%b%b%b'
            return event % (self._head, reply.index, orjson.dumps(text), self._tail, count)
        choice: dict[str, Any] = {"index": reply.index, "delta": {"content": text}, "logprobs": None}
        if self._options.logprobs is not None:
            ids, pieces = reply.plan.ids[start:end], reply.plan.pieces[start:end]
            choice["logprobs"] = chat_logprobs(ids, pieces, top=self._options.logprobs)
        choice["finish_reason"] = reply.finish_reason if last else None
        if last:
            choice["stop_reason"] = reply.stop_reason
        choice["token_ids"] = list(reply.plan.ids[start:end]) if self._options.token_ids else None
        return self._event(choice, self._usage(reply, end), last=last)

    def closing(self, prompt_tokens: int, replies: Sequence[Progress]) -> bytes:
        if not self._options.usage:
            return DONE
        details = self._envelope.prompt_token_details
        usage = final_chunk_usage(prompt_tokens, replies, details=details, creation=True)
        return _usage_event(self._head, usage, self._envelope) + DONE

    def _role(self, reply: Progress) -> bytes:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": reply.index, "delta": delta, "logprobs": None, "finish_reason": None}
        prompt_ids = reply.choice.prompt.ids if self._options.token_ids else None
        extra = {**self._usage(reply, 0), "prompt_token_ids": prompt_ids, "prompt_text": None}
        return self._event(choice, extra, last=False)

    def _count(self, reply: Progress, tokens: int) -> bytes:
        if not self._options.continuous_usage:
            return _END
        prompt = len(reply.choice.prompt.ids)
        return _COUNTED_CHAT_END % (prompt, prompt + tokens, tokens)

    def _usage(self, reply: Progress, tokens: int) -> dict[str, Any]:
        if not self._options.continuous_usage:
            return {}
        usage = plain_usage(len(reply.choice.prompt.ids), tokens)
        return {"usage": {**usage, "completion_tokens_details": None}}

    def _event(self, choice: dict[str, Any], extra: dict[str, Any], *, last: bool) -> bytes:
        return _event(self._head, choice, extra, self._envelope, stamped=last and not self._options.usage)


class CompletionChunks:
    def __init__(self, envelope: Envelope, options: StreamOptions) -> None:
        self._envelope = envelope
        self._options = options
        self._head = _head(envelope, "text_completion")
        self._tail = (
            b',"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
        )

    def opening(self, replies: Sequence[Progress]) -> bytes:
        return b""

    def tokens(self, reply: Progress, start: int, end: int) -> bytes:
        last = reply.finished and end == reply.tokens
        text = _text(reply, start, end)
        if self._options.plain and not last:
            count = self._count(reply, end)
            return b'%b{"index":%d,"text":%b%b%b' % (self._head, reply.index, orjson.dumps(text), self._tail, count)
        prompt = reply.choice.prompt
        first = start == 0
        if self._options.echo and first and not self._options.token_ids:
            text = prompt.text + text
        choice: dict[str, Any] = {"index": reply.index, "text": text, "logprobs": None}
        if self._options.logprobs is not None:
            choice["logprobs"] = self._logprobs(reply, start, end, top=self._options.logprobs)
        choice["finish_reason"] = reply.finish_reason if last else None
        choice["stop_reason"] = reply.stop_reason if last else None
        shows_prompt = first and (self._options.token_ids or self._options.echo)
        choice["prompt_token_ids"] = prompt.ids if shows_prompt else None
        choice["token_ids"] = list(reply.plan.ids[start:end]) if self._options.token_ids else None
        usage = {"usage": plain_usage(len(prompt.ids), end)} if self._options.continuous_usage else {}
        return _event(self._head, choice, usage, self._envelope, stamped=last and not self._options.usage)

    def closing(self, prompt_tokens: int, replies: Sequence[Progress]) -> bytes:
        if not self._options.usage:
            return DONE
        details = self._envelope.prompt_token_details
        usage = final_chunk_usage(prompt_tokens, replies, details=details, creation=False)
        return _usage_event(self._head, usage, self._envelope) + DONE

    def _count(self, reply: Progress, tokens: int) -> bytes:
        if not self._options.continuous_usage:
            return _END
        prompt = len(reply.choice.prompt.ids)
        return _COUNTED_END % (prompt, prompt + tokens, tokens)

    def _logprobs(self, reply: Progress, start: int, end: int, *, top: int) -> dict[str, Any]:
        offset = sum(len(piece) for piece in reply.plan.pieces[:start])
        ids, pieces = reply.plan.ids[start:end], reply.plan.pieces[start:end]
        return completion_logprobs(ids, pieces, top=top, offset_chars=offset)


def _text(reply: Progress, start: int, end: int) -> str:
    deltas = reply.plan.deltas
    return deltas[start] if end - start == 1 else "".join(deltas[start:end])


def _head(envelope: Envelope, kind: str) -> bytes:
    """Return the beginning of a stream event: everything before the first choice."""
    known = {"id": envelope.request_id, "object": kind, "created": envelope.created_s, "model": envelope.model}
    return b"data: " + orjson.dumps(known)[:-1] + b',"choices":['


def _event(head: bytes, choice: dict[str, Any], extra: dict[str, Any], envelope: Envelope, *, stamped: bool) -> bytes:
    rest = {**extra, "system_fingerprint": envelope.fingerprint} if stamped else extra
    after = b"," + orjson.dumps(rest)[1:] if rest else b"}"
    return head + orjson.dumps(choice) + b"]" + after + b"\n\n"


def _usage_event(head: bytes, usage: dict[str, Any], envelope: Envelope) -> bytes:
    rest = orjson.dumps({"usage": usage, "system_fingerprint": envelope.fingerprint})
    return head + b"]," + rest[1:] + b"\n\n"
