"""Warm-up: an engine compiles before it serves, without being reported as hung."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from functions.decisions.health.engine import HealthPolicy
from functions.engines.client import EngineClient
from functions.fleet.tasks import Supervised
from functions.replica.monitor import EngineProber, Monitor
from functions.replica.status import AgentStatus
from functions.replica.warm_up import KINDS, WarmUp
from tests.replica.statuses import Clock, make_status

BASE = "smollm2-135m"
FINISHED = "e2e_request_latency_seconds_count"
FIGURES = (
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total", FINISHED),
    *("generation_tokens_total", "iteration_tokens_total_count", "prefix_cache_queries_total"),
    *("prefix_cache_hits_total", "num_preemptions_total", "inter_token_latency_seconds_sum"),
    *("inter_token_latency_seconds_count", "request_prefill_time_seconds_sum", "e2e_request_latency_seconds_sum"),
    *("request_prefill_kv_computed_tokens_sum",),
)


@dataclass
class CompilingEngine:
    """Engine whose server answers at once and whose step loop stalls from the first logprobs request until compiled."""

    compiled: asyncio.Event = field(default_factory=asyncio.Event)
    is_compiling: bool = False
    served: int = 0  # number of requests in the engine's metrics
    asked: list[dict[str, Any]] = field(default_factory=list)
    refused: frozenset[str] = frozenset()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            figures = dict.fromkeys(FIGURES, 0) | {FINISHED: self.served}
            return httpx.Response(200, text="".join(f"vllm:{name} {value}.0\n" for name, value in figures.items()))
        if request.method == "GET":
            return httpx.Response(200, json={"version": "0.32.0"})
        body = json.loads(request.content)
        if body.keys() - {"model", "prompt", "max_tokens", "temperature", "input"}:  # else it is a probe
            self.asked.append(body)
        self.is_compiling = self.is_compiling or "logprobs" in body
        if self.is_compiling:
            await self.compiled.wait()
        return httpx.Response(400 if self.refused & body.keys() else 200, json={"choices": [{}], "data": [{}]})


@dataclass
class Rig:
    engine: CompilingEngine
    clock: Clock
    status: AgentStatus
    prober: EngineProber
    monitor: Monitor

    async def seconds(self, count: int) -> set[str]:
        """Advance `count` seconds and return the phases reported in that time."""
        phases = set()
        for _ in range(count):
            self.clock.now_s += 1.0
            await self.monitor.tick()
            for _ in range(20):
                await asyncio.sleep(0)
            phases.add(self.status.phase()[0])
        return phases


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    engine, clock, tasks = CompilingEngine(), Clock(), Supervised()
    status = make_status("starting", clock)
    async with httpx.AsyncClient(transport=httpx.MockTransport(engine)) as http:
        client = EngineClient(http, "http://engine")
        prober = EngineProber(client, BASE, 600.0, clock)
        monitor = Monitor(status, client, prober, HealthPolicy(), tasks, warm_up=WarmUp(client, BASE, status, 600.0))
        yield Rig(engine, clock, status, prober, monitor)
        await tasks.close()


async def test_an_engine_that_compiles_for_long_is_starting_and_not_hung(rig: Rig) -> None:
    assert await rig.seconds(60) == {"starting"}
    assert rig.status.condemned == "" and "warmed up" in rig.status.phase()[1]
    rig.engine.compiled.set()
    await rig.seconds(3)
    assert rig.status.phase()[0] == "ready"
    assert len(rig.engine.asked) == len(KINDS["generate"]), "one of each kind"
    assert await rig.seconds(30) == {"ready"} and len(rig.engine.asked) == len(KINDS["generate"])


async def test_warm_up_skips_refused_request_kinds(rig: Rig) -> None:
    rig.engine.compiled.set()
    rig.engine.refused = frozenset({"logprobs", "response_format"})
    await rig.seconds(4)
    assert rig.status.phase()[0] == "ready" and len(rig.engine.asked) == len(KINDS["generate"])


async def test_an_engine_that_hangs_once_it_serves_is_found_hung(rig: Rig) -> None:
    rig.engine.compiled.set()
    await rig.seconds(4)
    rig.engine.compiled.clear()
    assert "hung" in await rig.seconds(15)


async def test_only_a_new_process_is_warmed_up(rig: Rig) -> None:
    rig.engine.compiled.set()
    rig.engine.served = 1_000  # as if the agent had restarted
    await rig.seconds(4)
    assert rig.status.phase()[0] == "ready" and rig.engine.asked == []


async def test_pooling_model_has_no_warm_up(rig: Rig) -> None:
    rig.prober.task = "embed"
    rig.engine.compiled.set()
    await rig.seconds(4)
    assert rig.engine.asked == []


async def test_warm_up_has_a_time_limit() -> None:
    engine, clock = CompilingEngine(), Clock()
    status = make_status("ready", clock)
    async with httpx.AsyncClient(transport=httpx.MockTransport(engine)) as http:
        warm_up = WarmUp(EngineClient(http, "http://engine"), BASE, status, 0.05)
        assert warm_up.mark_warming() and status.phase()[0] == "starting"
        await warm_up.run("generate")
    assert status.phase()[0] == "ready"
