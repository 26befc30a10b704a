"""Streams by the hundred, each of which checks what it receives: the text must be its own, whole, and in order."""

import asyncio
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx


@dataclass(slots=True)
class Stream:
    """One stream's request and what came of it."""

    model: str
    words: int = 40
    marker: str = field(default_factory=lambda: secrets.token_hex(6))
    text: str = ""
    status: int = 0
    done: bool = False
    error_code: str | None = None
    failure: str | None = None  # an error of the connection itself
    replica: str = ""
    served_by: str = ""  # the version, as x-shoal-model tells

    @property
    def prompt(self) -> str:
        return " ".join(f"{self.marker}-{number}" for number in range(self.words))

    @property
    def intact(self) -> bool:
        """Whole, ended, and nobody else's: the engine echoes the prompt, after the adapter's mark if there is one."""
        return self.status == 200 and self.done and self.error_code is None and self.text.endswith(self.prompt)


async def run_stream(client: httpx.AsyncClient, stream: Stream, on_first: Callable[[], None] = lambda: None) -> Stream:
    body = {
        "model": stream.model,
        "messages": [{"role": "user", "content": stream.prompt}],
        "stream": True,
        "max_tokens": 2000,
    }
    try:
        async with client.stream("POST", "/chat/completions", json=body) as answer:
            stream.status = answer.status_code
            stream.replica = answer.headers.get("x-shoal-replica", "")
            stream.served_by = answer.headers.get("x-shoal-model", "")
            if answer.status_code != 200:
                await answer.aread()
                stream.failure = answer.text[:300]
            async for line in answer.aiter_lines():
                _take(stream, line, on_first)
    except httpx.HTTPError as error:
        stream.failure = repr(error)
    return stream


def _take(stream: Stream, line: str, on_first: Callable[[], None]) -> None:
    if line == "data: [DONE]":
        stream.done = True
    elif line.startswith("data: "):
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            stream.error_code = event["error"]["code"]
            return
        said = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        if said and not stream.text:  # the first event of all names the role and says nothing
            on_first()
        stream.text += said


async def run_all(client: httpx.AsyncClient, streams: list[Stream]) -> list[Stream]:
    return list(await asyncio.gather(*(run_stream(client, stream) for stream in streams)))
