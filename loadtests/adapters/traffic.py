"""Open-loop load: requests start at random times at a steady mean rate; models follow Zipf's law
(`loadtests.popularity`)."""

import asyncio
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from loadtests.adapters.library import model_of
from loadtests.popularity import Popularity

_LOAD = re.compile(r"load;dur=([0-9.]+)")
_TOKENS = 8
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float  # since the load began
    status: int  # 0: no answer
    code: str  # error code, or ""
    ttft_ms: float
    load_ms: float | None  # wait for the adapter; None if it was warm

    @property
    def good(self) -> bool:
        return self.status == httpx.codes.OK and not self.code


async def offer(
    url: str, api_key: str, popularity: Popularity, rate_per_s: float, seconds: float, tell: Callable[[int], None]
) -> list[Sample]:
    """Send the load for `seconds` and return the samples, ordered by when each request ended."""
    rng = random.Random(7)
    samples: list[Sample] = []
    limits = httpx.Limits(max_connections=2000, max_keepalive_connections=200)
    headers = {"authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=_TIMEOUT_S) as client:
        began_s = next_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while next_s < began_s + seconds:
                await asyncio.sleep(max(0.0, next_s - time.monotonic()))
                group.create_task(_send_request(client, popularity.draw(), began_s, samples))
                next_s += rng.expovariate(rate_per_s)
                tell(len(samples))
    return samples


async def _send_request(client: httpx.AsyncClient, number: int, began_s: float, samples: list[Sample]) -> None:
    body = {
        "model": model_of(number),
        "messages": [{"role": "user", "content": "Tell me about the sea, the sky and all that lies between them."}],
        "max_tokens": _TOKENS,
        "ignore_eos": True,
        "stream": True,
    }
    started_s = time.monotonic()
    ttft_s, status, code, load_ms = 0.0, 0, "", None
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            status = answer.status_code
            timing = _LOAD.search(answer.headers.get("server-timing", ""))
            load_ms = float(timing[1]) if timing else None
            if status != httpx.codes.OK:
                code = str((await answer.aread())[:300], "utf-8", "replace")
            async for line in answer.aiter_lines():
                if line.startswith("data: {") and not ttft_s and '"content":"' in line and '"content":""' not in line:
                    ttft_s = time.monotonic() - started_s
                if '"error"' in line[:20]:
                    code = line[:300]
    except httpx.HTTPError as error:
        code = repr(error)
    samples.append(Sample(started_s - began_s, status, code, ttft_s * 1000, load_ms))
