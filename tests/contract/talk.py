"""Requests and event streams for the tests: defaults that make a real model's answers short and repeatable."""

import json
from typing import Any

import httpx

from tests.contract.servers import MODEL

FRANCE = "What is the capital of France?"


def chat(content: str = FRANCE, **changes: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 4} | changes


def completion(prompt: Any = "The capital of France is", **changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 2} | changes


def events(body: bytes) -> list[Any]:
    """Check the framing and return the data of every event but the last, which must be [DONE]."""
    frames = body.split(b"\n\n")
    assert frames.pop() == b"", "the stream does not end with a blank line"
    assert all(frame.startswith(b"data: ") and b"\n" not in frame for frame in frames)
    payloads = [frame.removeprefix(b"data: ") for frame in frames]
    assert payloads.pop() == b"[DONE]"
    for payload in payloads:
        compact = json.dumps(json.loads(payload), separators=(",", ":"), ensure_ascii=False)
        assert payload.decode() == compact, "the JSON is not compact"
    return [json.loads(payload) for payload in payloads]


async def stream(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[Any]:
    answer = await http.post(path, json=body | {"stream": True})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["transfer-encoding"] == "chunked"
    return events(answer.content)


def text_of(chunks: list[Any], index: int = 0) -> str:
    mine = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in mine)
