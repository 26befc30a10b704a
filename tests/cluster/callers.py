"""Clients of an installation: one request, a constant request rate, long streams; each result is recorded.

Half of a load's requests are streamed. A request is `whole` if its answer is complete, including a stream's last event.
Errors that the gateway reports are distinguished from broken connections.
"""

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.cluster.installation import Installation, percentile

_END_S = 120.0


@dataclass(slots=True)
class Call:
    model: str
    streamed: bool
    max_tokens: int
    words: int = 8
    began_s: float = 0.0  # monotonic
    first_s: float = 0.0  # first byte of the answer's body
    ended_s: float = 0.0
    status: int = 0
    code: str | None = None  # error code from the gateway
    broken: str | None = None  # error of the connection
    replica: str = ""
    text: str = ""
    is_done: bool = False

    @property
    def whole(self) -> bool:
        return self.status == 200 and self.is_done and self.code is None and self.broken is None

    @property
    def fate(self) -> str:
        if self.whole:
            return "whole"
        return self.code or (self.broken or "").split("(")[0] or f"status {self.status}, cut"

    def body(self) -> dict[str, Any]:
        prompt = " ".join(f"word{number}" for number in range(self.words))
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "stream": self.streamed,
            "max_tokens": self.max_tokens,
        }


async def called(client: httpx.AsyncClient, call: Call, headers: dict[str, str] | None = None) -> Call:
    call.began_s = time.monotonic()
    try:
        async with client.stream("POST", "/chat/completions", json=call.body(), headers=headers) as answer:
            call.status, call.replica = answer.status_code, answer.headers.get("x-shoal-replica", "")
            if call.streamed and answer.status_code == 200:
                async for line in answer.aiter_lines():
                    _read_event(call, line)
            else:
                _take_whole(call, await answer.aread())
    except httpx.HTTPError as error:
        call.broken = repr(error)
    call.ended_s = time.monotonic()
    return call


def _read_event(call: Call, line: str) -> None:
    if not line.startswith("data: "):
        return
    call.first_s = call.first_s or time.monotonic()
    if line == "data: [DONE]":
        call.is_done = True
        return
    event = json.loads(line.removeprefix("data: "))
    if "error" in event:
        call.code = str(event["error"].get("code"))
        return
    call.text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])


def _take_whole(call: Call, content: bytes) -> None:
    call.first_s = time.monotonic()
    try:
        answer = json.loads(content)
    except ValueError:
        call.code = f"status {call.status}: {content[:60]!r}"
        return
    if call.status != 200:
        call.code = str((answer.get("error") or {}).get("code") or f"status {call.status}")
        return
    call.text = answer["choices"][0]["message"].get("content") or ""
    call.is_done = True


@dataclass(slots=True)
class Load:
    """Results of a load; `calls` is in the order of their starts."""

    calls: list[Call] = field(default_factory=list)

    @property
    def ended(self) -> list[Call]:
        return [call for call in self.calls if call.ended_s]

    @property
    def failed(self) -> list[Call]:
        return [call for call in self.ended if not call.whole]

    def words(self) -> str:
        """Return a summary: number of requests, failures by kind, duration, latency of complete requests."""
        fates = Counter(call.fate for call in self.failed)
        text = f"{len(self.failed)} of {len(self.ended)} failed"
        if fates:
            span_s = max(call.ended_s for call in self.failed) - min(call.began_s for call in self.failed)
            text += f" over {span_s:.1f} s ({', '.join(f'{count} {fate}' for fate, count in fates.most_common())})"
        times = [call.ended_s - call.began_s for call in self.ended if call.whole]
        return f"{text}; p50 {percentile(times, 0.5):.2f} s, p99 {percentile(times, 0.99):.2f} s"


@contextmanager
def load(
    installation: Installation, key: str, *, rate_per_s: float = 5.0, max_tokens: int = 8, model: str | None = None
) -> Iterator[Load]:
    """Send requests at a constant rate, however earlier ones end; on exit, all have ended."""
    made, over = Load(), threading.Event()

    async def run() -> None:
        async with installation.async_client(key) as client, asyncio.TaskGroup() as group:
            began_s = time.monotonic()
            while not over.is_set():
                call = Call(model or installation.pool, len(made.calls) % 2 == 0, max_tokens)
                made.calls.append(call)
                group.create_task(called(client, call))
                await asyncio.sleep(max(0.0, began_s + len(made.calls) / rate_per_s - time.monotonic()))

    with _in_a_thread(run, over):
        yield made


@contextmanager
def streams(installation: Installation, key: str, count: int, words: int) -> Iterator[Load]:
    """Run long streams, and yield when all have started; a simulated engine echoes the prompt's words."""
    made = Load([Call(installation.pool, True, 4 * words, words) for _ in range(count)])

    async def run() -> None:
        async with installation.async_client(key, timeout_s=_END_S, connections=count) as client:
            await asyncio.gather(*(called(client, call) for call in made.calls))

    with _in_a_thread(run, threading.Event()):
        until_s = time.monotonic() + _END_S
        while not all(call.first_s or call.ended_s for call in made.calls) and time.monotonic() < until_s:
            time.sleep(0.05)  # real: streams start when the engines have a slot for them
        yield made


@contextmanager
def _in_a_thread(run: Any, over: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield
    finally:
        over.set()
        with contextlib.suppress(RuntimeError):
            thread.join(2 * _END_S)
