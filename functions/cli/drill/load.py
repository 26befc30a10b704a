"""Load of a drill: streamed chats at a fixed rate, whose answers are checked.

Arrivals do not wait for answers: a slow answer does not delay later requests. At most `MAX_OPEN` requests are open;
further ones are not sent, and counted as `left_out`. So are requests that failed without an answer while this process
itself was stalled, since a gateway closes a connection on which no request arrives.

A simulated engine echoes the prompt after the adapter's name, so an answer to another request is detected. With any
engine, `x-shoal-model` names the model that answered.
"""

import asyncio
import contextlib
import itertools
import json
import secrets
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from functions.cli.drill.declared import DrillLoad
from functions.cli.drill.timeline import Ending, RequestOutcome

MAX_OPEN = 400  # open requests per load
REQUEST_S = 45.0
CONNECT_S = 10.0
LATE_S = 1.0  # arrivals missed by a stall are made up for at most this time
PULSE_S, STARVED_S = 0.25, 4.0  # a longer stall of this process makes its open requests meaningless
DETAIL_CHARS = 160
EVENT_MAX_CHARS = 1024 * 1024
_REFUSALS = frozenset({429, 503})
_VOCABULARY = ("amber", "basalt", "cedar", "delta", "ember", "fjord", "garnet", "harbor", "indigo", "jasper", "kelp")


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """Gateway address, key and model for the requests."""

    url: str
    key: str
    verify: ssl.SSLContext
    base_model: str
    echoes: bool  # True for simulated engines, whose text is known


@dataclass(slots=True)
class _Answer:
    """The answer to one request so far."""

    status: int = 0
    model: str = ""
    degraded: bool = False
    text: str = ""
    done: bool = False
    error: str = ""  # error of an event in the stream
    broke: str = ""  # error of the connection
    retry_after: bool = False
    code: str = ""
    first_s: float | None = None
    request_id: str = ""
    tokens: int | None = None


@dataclass(slots=True)
class LoadMaker:
    """Sends one load. `outcomes` grows while it runs."""

    load: DrillLoad
    target: LoadTarget
    clock: Callable[[], float]  # seconds since the drill began
    outcomes: list[RequestOutcome] = field(default_factory=list)
    left_out: int = 0
    _open: set[asyncio.Task[None]] = field(default_factory=set)
    _starved: list[tuple[float, float]] = field(default_factory=list)  # (start, end) of each stall

    async def run(self, stop: asyncio.Event) -> None:
        """Send requests until `stop`, then wait for open ones up to REQUEST_S. Cancellation drops them."""
        limits = httpx.Limits(max_connections=MAX_OPEN, max_keepalive_connections=MAX_OPEN)
        timeout = httpx.Timeout(REQUEST_S, connect=CONNECT_S, pool=REQUEST_S)
        models = itertools.cycle(self.load.models or (self.target.base_model,))
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        client = httpx.AsyncClient(verify=self.target.verify, timeout=timeout, limits=limits, trust_env=False)
        async with client, asyncio.TaskGroup() as group:
            pulse = group.create_task(self._pulse())
            while not stop.is_set():
                if len(self._open) < MAX_OPEN:
                    task = group.create_task(self._one(client, next(models)))
                    self._open.add(task)
                    task.add_done_callback(self._open.discard)
                else:
                    self.left_out += 1
                next_s = max(next_s + 1.0 / self.load.requests_per_s, loop.time() - LATE_S)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(next_s):
                        await stop.wait()
            if self._open:
                await asyncio.wait(self._open)
            pulse.cancel()

    async def _pulse(self) -> None:
        """Record stalls of this process that last longer than STARVED_S, until cancelled."""
        while True:
            before_s = self.clock()
            await asyncio.sleep(PULSE_S)
            if self.clock() - before_s > STARVED_S:
                self._starved.append((before_s, self.clock()))

    def _was_starved(self, began_s: float, ended_s: float) -> bool:
        return any(first_s <= ended_s and began_s <= last_s for first_s, last_s in self._starved)

    async def _one(self, client: httpx.AsyncClient, model: str) -> None:
        prompt = _prompt(self.load)
        began_s, answer = self.clock(), _Answer()
        try:
            async with asyncio.timeout(REQUEST_S):
                await self._send(client, model, prompt, answer)
        except (httpx.HTTPError, TimeoutError, ValueError) as error:
            answer.broke = repr(error)
        ending, detail = judged(
            answer, model, prompt, echoes=self.target.echoes, another_may_answer=self.load.another_may_answer
        )
        await asyncio.sleep(PULSE_S if answer.broke and not answer.status else 0.0)  # the pulse records a stall first
        if answer.broke and not answer.status and self._was_starved(began_s, self.clock()):
            self.left_out += 1
            return
        self.outcomes.append(
            RequestOutcome(
                traffic=self.load.traffic,
                began_s=began_s,
                ended_s=self.clock(),
                ending=ending,
                first_s=answer.first_s,
                status=answer.status,
                detail=detail[:DETAIL_CHARS],
                request_id=answer.request_id,
                tokens=answer.tokens,
            )
        )

    async def _send(self, client: httpx.AsyncClient, model: str, prompt: str, answer: _Answer) -> None:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": self.load.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"authorization": f"Bearer {self.target.key}"}
        async with client.stream("POST", f"{self.target.url}/v1/chat/completions", json=body, headers=headers) as got:
            answer.status = got.status_code
            answer.model = got.headers.get("x-shoal-model", "")
            answer.request_id = got.headers.get("x-request-id", "")
            answer.degraded = "x-shoal-degraded" in got.headers
            answer.retry_after = "retry-after" in got.headers
            if got.status_code != httpx.codes.OK:
                answer.code = _code(await got.aread())
                return
            async for line in got.aiter_lines():
                self._read_line(answer, line)

    def _read_line(self, answer: _Answer, line: str) -> None:
        if not line.startswith("data:") or len(line) > EVENT_MAX_CHARS:
            return
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            answer.done = True
            return
        event: dict[str, Any] = json.loads(data)
        if "error" in event:
            answer.error = str(event["error"].get("code") or event["error"])
            return
        if event.get("usage"):
            answer.tokens = int(event["usage"]["prompt_tokens"]) + int(event["usage"]["completion_tokens"])
        for choice in event.get("choices", ()):
            said = choice.get("delta", {}).get("content") or ""
            if said and answer.first_s is None:
                answer.first_s = self.clock()
            answer.text += said


def judged(
    answer: _Answer, model: str, prompt: str, *, echoes: bool, another_may_answer: bool = False
) -> tuple[Ending, str]:
    """Return the ending of a request, and the reason unless it is "whole"."""
    if answer.status in _REFUSALS and answer.code:
        missing = "" if answer.retry_after else ", without retry-after"
        return "refused", f"{answer.code}{missing}"
    if answer.broke or answer.status != httpx.codes.OK:
        return "failed", answer.broke or answer.code
    if answer.model.partition("@")[0] != model and not answer.degraded and not another_may_answer:
        return "mixed", f"{answer.model} answered for {model}"
    if echoes and not answer.degraded and not _is_own(answer, model, prompt):
        return "mixed", f"another's text: {answer.text[:60]!r} for {prompt[:40]!r}"
    if answer.error:
        return "broken_off", answer.error
    return ("whole", "") if answer.done else ("failed", "the stream ended without [DONE]")


def _is_own(answer: _Answer, model: str, prompt: str) -> bool:
    """Return True if the text so far is the echo of the prompt, after the adapter's mark if the model is an adapter."""
    text, marked = answer.text, "/" in model
    if marked:
        mark, closed, text = answer.text.partition("] ")
        if not closed:
            return f"[{model}@".startswith(mark[: len(model) + 2])
        if not mark.startswith(f"[{model}@"):
            return False
    return prompt.startswith(text.strip())


def _prompt(load: DrillLoad) -> str:
    """Return a unique prompt. A random mark follows the shared words, if any."""
    words: Iterator[str] = itertools.cycle(_VOCABULARY)
    shared = [next(words) for _ in range(load.shared_words)]
    mark = secrets.token_hex(6)
    return " ".join([*shared, mark, *(next(words) for _ in range(max(0, load.words - load.shared_words - 1)))])


def _code(body: bytes) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        error = json.loads(body)["error"]
        return str(error.get("code") or error.get("type") or "")
    return ""
