"""Checked load: the text of every answer is compared with the expected one for its model and tenant.

An answer is `whole`, `honest` (a refusal in the API's shape, an error event, or a connection cut while its gateway had
a fault), `ours` (cut by this client, or while this process was stalled) or `wrong`. Each engine echoes the prompt,
after its adapter's mark.
"""

import asyncio
import json
import random
import secrets
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.origin_pools import PoolPerOrigin, chain, closed_here

MODELS = {"acme": ("smollm2-135m", "acme/support-bot", "acme/pirate"), "globex": ("smollm2-135m", "globex/haiku")}
_HONEST = frozenset({408, 429, 502, 503, 504})
_ANSWER_S = 150.0  # answers that take longer count as missing
_LATE_S = 3.0  # after a stall this long, the client's own connections may have timed out
_LEAVES = 0.04  # share of clients that leave in the middle of their answer
_PLAIN = 0.3
_KEPT_ALIVE_S = 30.0  # a connection that was not seen to close in time


@dataclass(slots=True)
class SentRequest:
    tenant: str
    model: str
    gateway: str
    streams: bool
    words: int
    at_s: float
    marker: str = field(default_factory=lambda: secrets.token_hex(6))
    ended_s: float = 0.0
    end: str = ""  # whole, honest or wrong
    how: str = ""
    text: str = ""
    tokens: tuple[int, int] | None = None  # prompt and completion tokens, as reported in the answer
    pieces: int = 0

    @property
    def prompt(self) -> str:
        return " ".join(f"{self.marker}-{number}" for number in range(self.words))

    def is_right(self) -> bool:
        """Return whether the text is the request's own, whole, and from the requested model (an adapter's mark names
        it).
        """
        mark, _, rest = self.text.partition("] ") if self.text.startswith("[") else ("", "", self.text)
        named = mark.removeprefix("[").split("#")[0] if mark else ""
        return rest == self.prompt and (named.startswith(self.model) if "/" in self.model else not mark)


class Load:
    """Load on gateways that `ready` marks; `faulted` returns whether a gateway had a fault since a time."""

    def __init__(
        self, urls: dict[str, str], keys: dict[str, str], tls: ssl.SSLContext, ready: dict[str, bool], per_s: float,
        seed: int, faulted: Callable[[str, float], bool],
    ) -> None:  # fmt: skip
        self.asked: list[SentRequest] = []
        self._urls, self._keys, self._ready = urls, keys, ready
        self._per_s, self._faulted = per_s, faulted
        self._rng = random.Random(seed)
        self._late_s: list[float] = []  # when this process had been stalled
        pools = PoolPerOrigin(tls, httpx.Limits(max_connections=400, max_keepalive_connections=50))
        self._client = httpx.AsyncClient(transport=pools, timeout=_ANSWER_S, trust_env=False)

    async def run(self, over: asyncio.Event) -> None:
        """Send requests until `over`, then wait until the last one has ended."""
        next_s = time.monotonic()
        ticking = asyncio.get_running_loop().create_task(self._tick())
        async with asyncio.TaskGroup() as group:
            while not over.is_set():
                next_s = max(next_s + self._rng.expovariate(self._per_s), time.monotonic() - 1.0)
                await asyncio.sleep(max(0.0, next_s - time.monotonic()))
                group.create_task(self._one(self._drawn(), leaves=self._rng.random() < _LEAVES))
        ticking.cancel()
        await self._client.aclose()

    async def _tick(self) -> None:
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(0.2)
            if time.monotonic() - began_s > _LATE_S:
                self._late_s.append(time.monotonic())

    def _drawn(self) -> SentRequest:
        tenant = self._rng.choice(("acme", "acme", "globex"))
        ready = [name for name, said in self._ready.items() if said] or list(self._urls)
        model, gateway = self._rng.choice(MODELS[tenant]), self._rng.choice(ready)
        streams = self._rng.random() > _PLAIN
        return SentRequest(tenant, model, gateway, streams, self._rng.randint(10, 120), time.monotonic())

    async def _one(self, asked: SentRequest, *, leaves: bool) -> None:
        self.asked.append(asked)
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._send_request(asked, leaves=leaves)
        except TimeoutError:
            self._cut(asked, "no end")
        except httpx.HTTPError as error:
            names = [type(each).__name__ for each in chain(error)]
            self._cut(asked, " from ".join(dict.fromkeys(names)), is_ours=closed_here(error))
        asked.ended_s = time.monotonic()
        if asked.end == "whole":
            asked.text = ""  # there is an hour of them

    def _cut(self, asked: SentRequest, how: str, *, is_ours: bool = False) -> None:
        """Classify a connection that was cut: honest if the gateway had a fault; `ours` if this process closed it or
        was stalled meanwhile, which is reported and not judged.
        """
        asked.how = f"{how} of {'a stream' if asked.text else 'a request'}"
        if is_ours:
            asked.end = "ours"
        elif self._faulted(asked.gateway, asked.at_s):
            asked.end = "honest"
        elif any(at_s >= asked.at_s - _KEPT_ALIVE_S for at_s in self._late_s):
            asked.end = "ours"
        else:
            asked.end = "wrong"
            took_s = time.monotonic() - asked.at_s
            asked.how += f" at {asked.gateway} at {time.strftime('%H:%M:%S')}, {took_s:.1f} s after it was sent"

    async def _send_request(self, asked: SentRequest, *, leaves: bool) -> None:
        body: dict[str, Any] = {
            "model": asked.model, "messages": [{"role": "user", "content": asked.prompt}], "max_tokens": 2000,
        }  # fmt: skip
        if asked.streams:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        headers = {"authorization": f"Bearer {self._keys[asked.tenant]}"}
        url = self._urls[asked.gateway] + "/v1/chat/completions"
        async with self._client.stream("POST", url, json=body, headers=headers) as answer:
            if answer.status_code != 200:
                _judge_refusal(asked, answer.status_code, await answer.aread())
            elif asked.streams:
                await _read_stream(asked, answer, leaves=leaves)
            else:
                content = json.loads(await answer.aread())
                asked.text, asked.tokens = content["choices"][0]["message"]["content"], _tokens(content)
                _judge_text(asked)

    def count_ends(self) -> Counter[str]:
        return Counter(f"{asked.end}: {asked.how}" for asked in self.asked)


def _judge_refusal(asked: SentRequest, status: int, content: bytes) -> None:
    try:
        code = str(json.loads(content)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        asked.end, asked.how = "wrong", f"{status} without a shape: {content[:120]!r}"
        return
    asked.end, asked.how = "honest" if status in _HONEST else "wrong", f"{status} {code}"


async def _read_stream(asked: SentRequest, answer: httpx.Response, *, leaves: bool) -> None:
    done, error = False, ""
    async for line in answer.aiter_lines():
        if line == "data: [DONE]":
            done = True
        elif line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                error = str(event["error"]["code"])
                continue
            if event.get("usage"):
                asked.tokens = _tokens(event)
            said = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            asked.text += said
            asked.pieces += bool(said)
            if leaves and asked.pieces > asked.words // 2:
                asked.end, asked.how = "honest", "the client left"
                return
    if error:
        asked.end, asked.how = ("wrong", f"{error}, then [DONE]") if done else ("honest", f"error event {error}")
    elif not done:
        asked.end, asked.how = "wrong", f"a stream without [DONE] after {len(asked.text)} characters"
    else:
        _judge_text(asked)


def _judge_text(asked: SentRequest) -> None:
    if asked.is_right():
        asked.end, asked.how = "whole", "stream" if asked.streams else "answer"
    else:
        asked.end, asked.how = "wrong", f"text {asked.text[:60]!r}… for {asked.model} {asked.prompt[:20]!r}…"


def _tokens(content: dict[str, Any]) -> tuple[int, int]:
    return int(content["usage"]["prompt_tokens"]), int(content["usage"]["completion_tokens"])
