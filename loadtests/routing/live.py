"""The replay in real time: a gateway and simulated engines as processes, and an open-loop client.

Lengths are divided by SCALE and the engines' microseconds a token multiplied by it. Times stay the same, while
tokenizing and hashing on a few shared cores cost a quarter. A block's text has one six-byte word for each of its tokens
and depends only on the block's number.
"""

import asyncio
import random
import re
import string
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import orjson

from loadtests.adapters.fleet import POOL, Shape
from loadtests.adapters.library import model_of
from loadtests.routing.trace import BLOCK_TOKENS, TraceRequest

SCALE = 4
BLOCK = BLOCK_TOKENS // SCALE
_TIMEOUT_S = 180.0
_PATIENCE_MS = 600_000  # promised TTFT, so high that every request is dispatched: only routers are compared
_FIRST = b'"delta":{"content":'
_STATUS = re.compile(rb"HTTP/1\.1 (\d+)")
_LOAD = re.compile(rb"load;dur=([0-9.]+)")
_CACHED = re.compile(rb'"cached_tokens":(\d+)')
_PROMPT = re.compile(rb'"prompt_tokens":(\d+)')


@dataclass(frozen=True, slots=True)
class Engines:
    """The simulated engines; lengths are those of the trace."""

    replicas: int = 8
    kv_tokens: int = 1_000_000
    max_num_seqs: int = 64
    batched_tokens: int = 4096
    prefill_us_per_token: float = 50.0
    step_ms: float = 8.0
    slowdown: float = 1.0  # factor on all of an engine's times
    places: int = 16  # adapters per replica
    adapter_load_ms: float = 200.0


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    status: int  # 0: no answer
    ttft_ms: float
    prompt_tokens: int
    cached_tokens: int
    load_ms: float | None  # wait for the adapter; None if it was loaded
    error: str = ""

    @property
    def good(self) -> bool:
        return self.status == 200 and self.ttft_ms > 0


def shape_of(engines: Engines, router: str) -> Shape:
    flags = {
        "--max-num-seqs": engines.max_num_seqs,
        "--max-num-batched-tokens": engines.batched_tokens // SCALE,
        "--num-gpu-blocks-override": engines.kv_tokens // SCALE // 16,
        "--sim-prefill-us-per-token": engines.prefill_us_per_token * SCALE * engines.slowdown,
        "--sim-step-ms": engines.step_ms * engines.slowdown,
    }
    return Shape(
        replicas=engines.replicas,
        nodes=2,
        slots=min(8, engines.places),
        places=engines.places,
        cache_max_bytes=2**32,
        engine="sim",
        adapter_load_ms=engines.adapter_load_ms * engines.slowdown,
        context_tokens=40_000,
        engine_flags=(*(str(part) for flag in flags.items() for part in flag), "--enable-prompt-tokens-details"),
        ttft_slo_ms=_PATIENCE_MS,
        gateway_module=("studies.gateway", router),
    )


async def replay(
    url: str, api_key: str, asked: Sequence[TraceRequest], compression: float, tell: Callable[[str], None]
) -> list[Sample]:
    """Send each request at its time, independent of earlier answers, and return the samples."""
    samples: list[Sample] = []
    began_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number, each in enumerate(asked):
            at_s = each.at_s / compression
            await asyncio.sleep(max(0.0, began_s + at_s - time.monotonic()))
            group.create_task(_send_request(url, _request(url, api_key, each), at_s, samples))
            if number % 200 == 0:
                tell(f"{number} of {len(asked)} sent, {len(samples)} answered")
    return samples


async def _send_request(url: str, request: bytes, at_s: float, samples: list[Sample]) -> None:
    began_s, first_s, head, tail = time.monotonic(), 0.0, b"", b""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
            writer.write(request)
            while data := await reader.read(65536):
                head = head or data
                if not first_s and _FIRST in tail + data:
                    first_s = time.monotonic()
                tail = (tail + data)[-2000:]
            writer.close()
    status = _STATUS.match(head)
    load = _LOAD.search(head)
    samples.append(
        Sample(
            at_s,
            int(status[1]) if status else 0,
            (first_s - began_s) * 1000 if first_s else 0.0,
            _last(_PROMPT, tail),
            _last(_CACHED, tail),
            float(load[1]) if load else None,
            "" if first_s else tail[-200:].decode("utf-8", "replace"),
        )
    )


def _last(pattern: re.Pattern[bytes], data: bytes) -> int:
    found = pattern.findall(data)
    return int(found[-1]) if found else 0


def _request(url: str, api_key: str, asked: TraceRequest) -> bytes:
    body: dict[str, Any] = {
        "model": POOL if asked.adapter is None else model_of(asked.adapter),
        "messages": [
            {"role": "system", "content": "".join(text_of(block) for block in asked.blocks)},
            {"role": "user", "content": "Go on."},
        ],
        "max_tokens": max(1, asked.output_tokens // SCALE),
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if asked.session is not None:
        body["session_id"] = asked.session
    encoded = orjson.dumps(body)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\nauthorization: Bearer {api_key}\r\n"
        f"content-type: application/json\r\nconnection: close\r\ncontent-length: {len(encoded)}\r\n\r\n"
    )
    return head.encode() + encoded


@lru_cache(20_000)
def text_of(block: int) -> str:
    """Return a block's text: BLOCK words of a space and five letters, one token each."""
    rng = random.Random(block)
    return "".join(" " + "".join(rng.choices(string.ascii_lowercase, k=5)) for _ in range(BLOCK))
