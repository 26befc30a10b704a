"""Clients that disconnect, and more requests than the queue accepts."""

import asyncio
import contextlib
from typing import Any

import httpx
import pytest

from functions.engines.client import EngineClient
from functions.engines.metrics import EngineMetrics
from tests.contract.servers import MAX_QUEUED_REQS
from tests.contract.shapes import assert_shape, error_body
from tests.contract.talk import chat

PATH = "/v1/chat/completions"
LEAVE_S = {"sim": 5.0, "vllm": 10.0}
"""The promise is one second. A busy machine may need several; the real engine may need them for a single step."""
ENDLESS: dict[str, Any] = {"max_tokens": 900, "ignore_eos": True}


COMES_ABOUT_S = 60.0


async def until(client: EngineClient, running: int, *, within_s: float = COMES_ABOUT_S) -> EngineMetrics:
    async with asyncio.timeout(within_s):
        while True:
            metrics = await client.metrics()
            if metrics.running + metrics.waiting == running:
                return metrics
            await asyncio.sleep(0.02)


async def test_a_client_that_leaves_a_stream_stops_the_engine_within_a_second(
    http: httpx.AsyncClient, client: EngineClient, kind: str
) -> None:
    async with http.stream("POST", PATH, json=chat(stream=True, **ENDLESS)) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        await until(client, running=1)
    await until(client, running=0, within_s=LEAVE_S[kind])


async def test_a_client_that_leaves_before_the_answer_stops_the_engine_within_a_second(
    http: httpx.AsyncClient, client: EngineClient, kind: str
) -> None:
    asking = asyncio.ensure_future(http.post(PATH, json=chat(**ENDLESS)))
    await until(client, running=1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(client, running=0, within_s=LEAVE_S[kind])


async def test_a_request_beyond_the_queue_limit_is_503(http: httpx.AsyncClient, client: EngineClient) -> None:
    async with contextlib.AsyncExitStack() as streams:
        for _ in range(MAX_QUEUED_REQS):
            streaming = http.stream("POST", PATH, json=chat(stream=True, **ENDLESS))
            await streams.enter_async_context(streaming)
        await until(client, running=MAX_QUEUED_REQS)
        answer = await http.post(PATH, json=chat(stream=True))
    words = r"The engine is currently busy and cannot accept new requests\. Please try again later .*"
    assert answer.status_code == 503 and "retry-after" not in answer.headers
    assert_shape(answer.json(), error_body("Service Unavailable", words, code=503))
    await until(client, running=0)
