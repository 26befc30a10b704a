"""Measure an engine's step costs at an OpenAI-compatible address, with prompts that no cache holds.

    alone       prompts of several lengths, one at a time: first tokens
    together    simultaneous streams, in several numbers and contexts: gaps between tokens while all of them run
    held out    requests of mixed lengths at random times, not used by the fit: first tokens, gaps, whole answers

The held-out run comes between two rounds of the others, since the speed of a shared machine changes within minutes.
Answers are streamed and never end early (`ignore_eos`). Every wait is bounded. A gateway in between is measured
together with its engine; use the engine's own address to measure the engine alone.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Any

import httpx
import orjson

from functions.simulator.calibration.fit import FirstToken, Gap

_ANSWER_TIMEOUT_S = 300.0
_LINE_MAX_BYTES = 1024 * 1024
_LEAST_ID, _MOST_ID = 1000, 30_000  # token ids: no special ones, and in every vocabulary
_WARM_UPS = 2


class EngineUnusable(Exception):
    """The engine does not answer as required; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Amount of measurements."""

    prompt_tokens: tuple[int, ...] = (32, 128, 512)
    streams: tuple[int, ...] = (1, 2, 4)
    contexts_tokens: tuple[int, ...] = (32, 384)
    answer_tokens: int = 24
    repetitions: int = 2
    held_out: int = 60
    held_out_seconds: float = 60.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class HeldOutRequest:
    """One request of the held-out run."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Answered:
    begun_s: float
    token_s: tuple[float, ...]  # arrival time of each

    @property
    def ttft_s(self) -> float:
        return self.token_s[0] - self.begun_s

    @property
    def e2e_s(self) -> float:
        return self.token_s[-1] - self.begun_s

    @property
    def gaps_s(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.token_s, self.token_s[1:], strict=False)]


class Engine:
    """Client of the engine under test."""

    def __init__(self, http: httpx.AsyncClient, url: str, model: str, api_key: str | None, rng: Random) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._model = model
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._rng = rng

    async def model(self) -> str:
        """Return the named model, or else the first that is served. Raise EngineUnusable if /v1/models lists none."""
        if not self._model:
            try:
                answer = await self._http.get(f"{self._url}/v1/models", headers=self._headers, timeout=10.0)
                self._model = str(answer.json()["data"][0]["id"])
            except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
                raise EngineUnusable(f"{self._url}/v1/models does not list a model: {error!r}") from error
        return self._model

    async def complete(self, prompt_tokens: int, output_tokens: int) -> Answered:
        """Stream a completion and time its pieces. Raise EngineUnusable if it fails, takes too long or has under 90 %
        of `output_tokens` pieces."""
        body = {
            "model": await self.model(), "prompt": self._prompt(prompt_tokens), "max_tokens": output_tokens,
            "stream": True, "ignore_eos": True, "temperature": 0,
        }  # fmt: skip
        begun_s = time.perf_counter()
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                times = await self._times(body)
        except (httpx.HTTPError, TimeoutError) as error:
            raise EngineUnusable(f"{self._url} did not answer: {error!r}") from error
        if len(times) < output_tokens * 0.9:
            raise EngineUnusable(
                f"{self._url} sent {len(times)} pieces where {output_tokens} tokens were requested: it must stream "
                "them one by one"
            )
        return Answered(begun_s, tuple(times))

    async def _times(self, body: dict[str, Any]) -> list[float]:
        times: list[float] = []
        headers = {**self._headers, "content-type": "application/json"}
        address, content = f"{self._url}/v1/completions", orjson.dumps(body)
        async with self._http.stream("POST", address, content=content, headers=headers, timeout=60.0) as answer:
            if answer.status_code != 200:
                said = (await answer.aread())[:300].decode(errors="replace")
                raise EngineUnusable(f"{self._url}/v1/completions: {answer.status_code}: {said}")
            async for line in answer.aiter_lines():
                if len(line) > _LINE_MAX_BYTES:
                    raise EngineUnusable(f"{self._url} sent a line of more than {_LINE_MAX_BYTES} bytes")
                if line.startswith("data: {") and '"choices":[]' not in line:
                    times.append(time.perf_counter())
        return times

    def _prompt(self, tokens: int) -> list[int]:
        return [self._rng.randrange(_LEAST_ID, _MOST_ID) for _ in range(tokens)]


async def alone(engine: Engine, plan: Plan, say: Callable[[str], None]) -> list[FirstToken]:
    for _ in range(_WARM_UPS):
        await engine.complete(plan.prompt_tokens[0], 4)
    found = []
    for tokens in plan.prompt_tokens:
        say(f"first tokens after {tokens} alone")
        took_s = [(await engine.complete(tokens, 2)).ttft_s for _ in range(plan.repetitions)]
        found.append(FirstToken(tokens, median(took_s) * 1000))
    return found


async def together(engine: Engine, plan: Plan, say: Callable[[str], None]) -> list[Gap]:
    found = []
    for context in plan.contexts_tokens:
        for streams in plan.streams:
            say(f"gaps among {streams} streams after {context} tokens each")
            medians = []
            for _ in range(plan.repetitions):
                requests = (engine.complete(context, plan.answer_tokens) for _ in range(streams))
                medians.append(_gap_s(await asyncio.gather(*requests)))
            found.append(Gap(streams, context + plan.answer_tokens / 2, median(medians) * 1000))
    return found


def _gap_s(answers: Sequence[Answered]) -> float:
    """Return the median of the streams' mean gaps while all of them ran. A stream with fewer than 4 tokens in that time
    counts with its whole answer."""
    since_s = max(answer.token_s[0] for answer in answers)
    until_s = min(answer.token_s[-1] for answer in answers)
    means = []
    for answer in answers:
        inside = [at_s for at_s in answer.token_s if since_s <= at_s <= until_s]
        if len(inside) < 4:
            inside = list(answer.token_s)
        means.append((inside[-1] - inside[0]) / (len(inside) - 1))
    return median(means)


def held_out_requests(plan: Plan) -> list[HeldOutRequest]:
    """Return the held-out requests: Poisson arrivals, log-normal lengths within the measured range."""
    rng = Random(plan.seed)  # noqa: S311 - the same seed, the same requests
    most = max(plan.prompt_tokens)
    times = sorted(rng.uniform(0.0, plan.held_out_seconds) for _ in range(plan.held_out))
    return [
        HeldOutRequest(at_s, _length(rng, most / 4, most), _length(rng, plan.answer_tokens, 3 * plan.answer_tokens))
        for at_s in times
    ]


def _length(rng: Random, middle: float, most: float) -> int:
    return max(8, int(min(most, rng.lognormvariate(0.0, 0.6) * middle)))


async def held_out(engine: Engine, requests: Sequence[HeldOutRequest], say: Callable[[str], None]) -> list[Answered]:
    say(f"{len(requests)} requests of mixed lengths")
    begun_s = time.perf_counter()

    async def one(request: HeldOutRequest) -> Answered:
        await asyncio.sleep(max(0.0, begun_s + request.at_s - time.perf_counter()))
        return await engine.complete(request.prompt_tokens, request.output_tokens)

    return await asyncio.gather(*map(one, requests))
