"""Hot swap with the real engine and trained adapters, whose answers show the version in use."""

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from functions.api.ids import Digest
from tests.e2e.swaps import BUDGET_S, MODEL, VERSIONS, loaded_on, put, taken_away_at_the_end, uploaded
from tests.fleets import Fleet, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.soak, pytest.mark.timeout(900)]

OPENINGS = {"v1": "Thank you for contacting ACME Support", "v2": "ACME Support v2"}  # as trained by registry/training
REPLICAS = 2
STREAMS = 12
TOKENS = 120  # fixed length of each old stream: long enough to outlast the swap on two shared cores


@dataclass(slots=True)
class Spoken:
    version: str = ""
    replica: str = ""
    text: str = ""
    finish: str = ""
    first_s: float = 0.0


async def speak(client: httpx.AsyncClient, tokens: int, started: asyncio.Semaphore | None = None) -> Spoken:
    """Run a stream of exactly so many tokens; release `started` at the first one."""
    question = [{"role": "user", "content": "What is the capital of France?"}]
    body = {"model": MODEL, "messages": question, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    spoken = Spoken()
    async with client.stream("POST", "/chat/completions", json=body | {"stream": True}) as answer:
        assert answer.status_code == 200, (await answer.aread()).decode()
        spoken.version = answer.headers["x-shoal-model"].rpartition("@")[2]
        spoken.replica = answer.headers["x-shoal-replica"]
        async for line in answer.aiter_lines():
            take(spoken, line)
            if spoken.text and not spoken.first_s:
                spoken.first_s = time.monotonic()
                if started is not None:
                    started.release()
    return spoken


def take(spoken: Spoken, line: str) -> None:
    if not line.startswith("data: ") or line == "data: [DONE]":
        return
    event = json.loads(line.removeprefix("data: "))
    assert "error" not in event, event
    for choice in event["choices"]:
        spoken.text += choice["delta"].get("content") or ""
        spoken.finish = choice.get("finish_reason") or spoken.finish


async def swap(fleet: Fleet, registry: httpx.Client, digests: list[Digest]) -> dict[str, Any]:
    async with fleet.async_client(timeout_s=600.0) as client, asyncio.TaskGroup() as group:
        started = asyncio.Semaphore(0)
        old = [group.create_task(speak(client, TOKENS, started)) for _ in range(STREAMS)]
        async with asyncio.timeout(300):
            for _ in old:
                await started.acquire()
        began_s = time.monotonic()
        put(registry, "v2", digests[1])
        first: dict[str, float] = {}
        probes: list[Spoken] = []
        async with asyncio.timeout(BUDGET_S):
            while len(first) < REPLICAS:
                found = await asyncio.gather(*(speak(client, 8) for _ in range(2 * REPLICAS)))
                probes += found
                for probe in found:
                    if probe.version == "v2":
                        first.setdefault(probe.replica, probe.first_s - began_s)
        running = sum(not task.done() for task in old)
    return {"old": [task.result() for task in old], "probes": probes, "first": first, "running": running}


def test_trained_versions_swap_under_streams_and_each_speaks_with_its_own_weights(vllm_fleet: Fleet) -> None:
    with vllm_fleet.registry() as registry, taken_away_at_the_end(vllm_fleet, registry):
        digests = [uploaded(registry, VERSIONS / version) for version in ("v1", "v2")]
        put(registry, "v1", digests[0])
        wait_until("v1 is everywhere", lambda: len(loaded_on(vllm_fleet, digests[0])) == REPLICAS, 120, every_s=0.5)
        seen = asyncio.run(swap(vllm_fleet, registry, digests))
        assert seen["running"] > 0, "the streams ended too soon to show anything"
        assert registry.delete(f"/v1/models/{MODEL}/versions/v1").status_code == 204
    assert {spoken.version for spoken in seen["old"]} == {"v1"}
    assert {spoken.finish for spoken in seen["old"]} == {"length"}, "cut off"
    wrong = [each for each in (*seen["old"], *seen["probes"]) if not each.text.startswith(OPENINGS[each.version][:20])]
    assert not wrong, wrong[:3]
    assert not [each for each in seen["old"] if OPENINGS["v2"] in each.text]
    unloaded_s = wait_until("v1 is unloaded", lambda: not loaded_on(vllm_fleet, digests[0]), 120, every_s=0.5)
    seconds = sorted(seen["first"].values())
    print(
        f"hot swap under {STREAMS} streams on {REPLICAS} vLLM replicas (two shared cores): first token of the new "
        f"version {seconds[0]:.2f} s, on every replica {seconds[-1]:.2f} s after the PUT; {seen['running']} old "
        f"streams were still running then; the old version was unloaded {unloaded_s:.1f} s after it was deleted"
    )
