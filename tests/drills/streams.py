"""Hundreds of streams, each of which checks that its text is its own, whole and in order.

A few dozen streams at a time connect and send their request. Among a thousand simultaneous handshakes the last takes as
long as all of them, and a gateway waits ten seconds for a request on a connection (`functions.gateway.limits`).
"""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

AT_THE_DOOR = 32


@dataclass(slots=True)
class Stream:
    """Request of one stream and its result."""

    model: str
    words: int = 40
    marker: str = field(default_factory=lambda: secrets.token_hex(6))
    text: str = ""
    status: int = 0
    done: bool = False
    done_s: float = 0.0  # monotonic time of the end
    error_code: str | None = None
    failure: str | None = None  # an error of the connection itself
    replica: str = ""
    served_by: str = ""  # the version, from x-shoal-model

    @property
    def prompt(self) -> str:
        return " ".join(f"{self.marker}-{number}" for number in range(self.words))

    @property
    def intact(self) -> bool:
        """Return whether the stream ended with its own whole text: the engine echoes the prompt, after an adapter's
        mark.
        """
        return self.status == 200 and self.done and self.error_code is None and self.text.endswith(self.prompt)


async def run_stream(
    client: httpx.AsyncClient,
    stream: Stream,
    on_first: Callable[[], None] = lambda: None,
    door: asyncio.Semaphore | None = None,
) -> Stream:
    """Run the stream; `on_first` is called once, at the first text."""
    async with contextlib.AsyncExitStack() as outside:
        if door is not None:
            await outside.enter_async_context(door)

        async def trace(event: str, _: dict[str, Any]) -> None:
            if event == "http11.send_request_body.complete":
                await outside.aclose()

        return await _run(client, stream, on_first, trace)


async def _run(
    client: httpx.AsyncClient, stream: Stream, on_first: Callable[[], None], trace: Callable[..., Any]
) -> Stream:
    body = {
        "model": stream.model,
        "messages": [{"role": "user", "content": stream.prompt}],
        "stream": True,
        "max_tokens": 2000,
    }
    try:
        async with client.stream("POST", "/chat/completions", json=body, extensions={"trace": trace}) as answer:
            stream.status = answer.status_code
            stream.replica = answer.headers.get("x-shoal-replica", "")
            stream.served_by = answer.headers.get("x-shoal-model", "")
            if answer.status_code != 200:
                await answer.aread()
                stream.failure = answer.text[:300]
            async for line in answer.aiter_lines():
                _read_line(stream, line, on_first)
    except httpx.HTTPError as error:
        stream.failure = repr(error)
    return stream


def _read_line(stream: Stream, line: str, on_first: Callable[[], None]) -> None:
    if line == "data: [DONE]":
        stream.done, stream.done_s = True, time.monotonic()
    elif line.startswith("data: "):
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            stream.error_code = event["error"]["code"]
            return
        said = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        if said and not stream.text:  # the first event names the role and has no text
            on_first()
        stream.text += said


async def run_all(client: httpx.AsyncClient, streams: list[Stream]) -> list[Stream]:
    door = asyncio.Semaphore(AT_THE_DOOR)
    return list(await asyncio.gather(*(run_stream(client, stream, door=door) for stream in streams)))
