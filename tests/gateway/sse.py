"""Server-sent events in vLLM's format, for scripted engines."""

import json
from typing import Any

DONE = b"data: [DONE]\n\n"


def compact(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def event(document: dict[str, Any]) -> bytes:
    return b"data: " + compact(document) + b"\n\n"


def chunk(model: str, delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return event(
        {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": [choice]}
    )


def role(model: str) -> bytes:
    return chunk(model, {"role": "assistant", "content": ""})


def token(model: str, text: str) -> bytes:
    return chunk(model, {"content": text})


def finish(model: str, reason: str = "stop") -> bytes:
    return chunk(model, {"content": ""}, reason)


def usage(model: str, prompt: Any = 3, completion: Any = 2) -> bytes:
    counted = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": 5}
    return event(
        {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": []}
        | {"usage": counted}
    )


def counted(model: str, text: str, tokens: int, index: int = 0, prompt: int = 3, **more: Any) -> bytes:
    """Return a chunk with the usage of its choice so far, as `continuous_usage_stats` requests."""
    choice = {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": None} | more
    known = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": [choice]}
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}
    return event(known | {"usage": usage | {"completion_tokens_details": None}})


def error(code: int = 500, message: str = "EngineCore encountered an issue") -> bytes:
    return event({"error": {"message": message, "type": "InternalServerError", "param": None, "code": code}})


def text_chunk(model: str, text: str, finish_reason: str | None = None) -> bytes:
    """Return a chunk of /v1/completions."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return event({"id": "cmpl-1", "object": "text_completion", "created": 1, "model": model, "choices": [choice]})


def whole(model: str, content: str = "hello", finish_reason: str = "stop", completion: int = 2) -> bytes:
    message = {"role": "assistant", "content": content}
    return compact(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": model,
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
            "usage": {"prompt_tokens": 3, "completion_tokens": completion, "total_tokens": 3 + completion},
        }
    )
