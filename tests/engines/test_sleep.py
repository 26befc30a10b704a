"""Sleep mode of the simulated engine: vLLM's routes, running requests, discarded caches and reported state."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from functions.engines.client import EngineClient
from functions.engines.errors import EngineRefused
from functions.engines.sim.lifecycle import MEMORY, Slumber
from functions.engines.sim.parts import EngineParts
from functions.replica.kv_events.source import AllBlocksCleared, decode
from tests.engines.servers import serving
from tests.engines.test_kv_events import batch_of, telling_engine

CHAT = "/v1/chat/completions"
DEV = {"VLLM_SERVER_DEV_MODE": "1"}
FOREVER = {"max_tokens": 5000, "ignore_eos": True}


def chat(**changes: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "one two three four five six"}]} | changes


async def state(http: httpx.AsyncClient) -> str:
    """Return the sleep states whose gauge is not 0, joined; "" if none."""
    families = text_string_to_metric_families((await http.get("/metrics")).text)
    samples = [s for f in families for s in f.samples if s.name == "vllm:engine_sleep_state"]
    assert {s.labels["sleep_state"] for s in samples} == {"awake", "weights_offloaded", "discard_all"}
    return "".join(s.labels["sleep_state"] for s in samples if s.value)


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def running(parts: EngineParts) -> int:
    return len(parts.engine.core.scheduler.running)


# Rules.


def test_awake_again_when_all_memory_is_back() -> None:
    asleep = Slumber().fall_asleep(1)
    assert (asleep.state, asleep.away) == ("weights_offloaded", MEMORY)
    weights = asleep.wake_up(["weights"])
    assert (weights.state, weights.away) == ("weights_offloaded", {"kv_cache"})
    assert weights.wake_up(["kv_cache"]) == asleep.wake_up(None) == Slumber()
    assert weights.wake_up(["weights"]) == weights, "it is there already"


def test_level_0_is_left_by_any_wake_up() -> None:
    paused = Slumber().fall_asleep(0)
    assert (paused.state, paused.away) == ("", frozenset())
    assert paused.wake_up(["scheduling"]) == paused.wake_up(None) == Slumber()


def test_only_waking_the_weights_takes_time() -> None:
    asleep = Slumber().fall_asleep(2)
    assert [asleep.reloads_weights(tags) for tags in (None, ["weights"], ["kv_cache"])] == [True, True, False]
    assert not Slumber().reloads_weights(None)


def test_discarded_cache_is_published_and_not_found() -> None:
    engine = telling_engine()
    engine.submit(range(20))
    engine.run()
    batch_of(engine)
    engine.core.scheduler.forget_cache()
    assert [type(event) for event in decode(batch_of(engine)).events] == [AllBlocksCleared]
    again = engine.submit(range(20))
    engine.run()
    assert again.cached_tokens == 0


def test_running_requests_are_recomputed_after_a_cache_reset_without_repeated_tokens() -> None:
    engine = telling_engine()
    seq = engine.submit(range(10), reply=6)
    while seq.emitted_tokens < 3:
        engine.step()
    engine.core.scheduler.pause = "all"
    engine.core.scheduler.forget_cache()
    assert not engine.core.has_work and engine.held_blocks == 0
    engine.core.scheduler.pause = ""
    engine.run()
    assert [number for _, number in engine.tokens[seq.seq_id]] == [1, 2, 3, 4, 5, 6]


# Server.


@pytest.mark.servers
async def test_without_the_development_mode_there_is_no_such_route() -> None:
    async with serving("--enable-sleep-mode") as (_, http, _):
        answers = [await http.post("/sleep"), await http.post("/wake_up"), await http.get("/is_sleeping")]
    assert [answer.status_code for answer in answers] == [404, 404, 404]


@pytest.mark.servers
async def test_sleep_and_wake_up_are_reported() -> None:
    async with serving("--enable-sleep-mode", **DEV) as (_, http, _):
        assert await state(http) == "awake"
        assert (await http.post("/sleep?level=1")).json() == {"status": "sleeping", "level": 1}
        assert await state(http) == "weights_offloaded"
        assert (await http.get("/is_sleeping")).json() == {"is_sleeping": True}
        assert (await http.get("/health")).status_code == 200
        assert (await http.post("/wake_up?tags=weights")).json() == {"status": "sleeping", "tags": ["weights"]}
        assert (await http.post("/wake_up")).json() == {"status": "awake", "tags": None}
        assert await state(http) == "awake"
        assert (await http.post("/sleep", params={"level": 2})).status_code == 200
        assert await state(http) == "discard_all"


@pytest.mark.servers
@pytest.mark.parametrize("query", ["level=3", "level=deep", "mode=gently"])
async def test_unknown_sleep_mode_is_refused(query: str) -> None:
    async with serving(**DEV) as (_, http, _):
        assert (await http.post(f"/sleep?{query}")).status_code == 400
        assert (await http.get("/is_sleeping")).json() == {"is_sleeping": False}


@pytest.mark.servers
async def test_request_to_a_sleeping_engine_waits_until_wake_up() -> None:
    async with serving(**DEV) as (parts, http, _):
        await http.post(CHAT, json=chat())
        await http.post("/sleep")
        asked = asyncio.ensure_future(http.post(CHAT, json=chat()))
        await until(lambda: parts.engine.core.scheduler.waiting)
        assert not parts.engine.core.has_work and not asked.done()
        await http.post("/wake_up")
        answer = (await asked).json()
    assert answer["choices"][0]["message"]["content"] == "one two three four five six"
    assert parts.engine.core.stats.prefix_hits_tokens == 0, "what was known before it slept is forgotten"


@pytest.mark.servers
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_sleep_aborts_running_requests_with_their_tokens(stream: bool) -> None:
    async with serving(**DEV) as (parts, http, _):
        asked = asyncio.ensure_future(http.post(CHAT, json=chat(stream=stream, **FOREVER)))
        await until(lambda: running(parts) and parts.engine.core.scheduler.running[0].emitted_tokens > 2)
        await http.post("/sleep")
        text = (await asked).text
        assert parts.engine.core.scheduler.blocks.usage_ratio == 0
        assert parts.engine.core.stats.finished["abort"] == 1
    if stream:
        chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "abort"
        assert text.endswith("data: [DONE]\n\n")
    else:
        body = json.loads(text)
        assert body["choices"][0]["finish_reason"] == "abort"
        assert 2 < body["usage"]["completion_tokens"] < 5000 and body["choices"][0]["message"]["content"]


@pytest.mark.servers
async def test_sleep_with_wait_waits_for_running_requests() -> None:
    async with serving(**DEV) as (parts, http, _):
        asked = asyncio.ensure_future(http.post(CHAT, json=chat(**FOREVER)))
        await until(lambda: running(parts))
        await http.post("/sleep?mode=wait")
        assert not running(parts)
        assert (await asked).json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.servers
async def test_sleep_with_keep_resumes_requests_after_wake_up() -> None:
    async with serving(**DEV) as (parts, http, _):
        asked = asyncio.ensure_future(http.post(CHAT, json=chat(**FOREVER)))
        await until(lambda: running(parts))
        await http.post("/sleep?mode=keep")
        assert not asked.done() and not running(parts)
        await http.post("/wake_up")
        answer = (await asked).json()
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 5000)


@pytest.mark.servers
async def test_wake_up_takes_the_configured_time() -> None:
    async with serving("--sim-wake-ms", "60000", **DEV) as (parts, http, _):
        client = EngineClient(http, "")
        await client.sleep()
        assert await client.is_sleeping()
        asleep_s = parts.clock.now_s()
        await client.wake_up()
        assert parts.clock.now_s() - asleep_s == pytest.approx(60.0)
        assert not await client.is_sleeping()
        awake_s = parts.clock.now_s()
        await client.wake_up()
        assert parts.clock.now_s() == awake_s, "it was awake"


@pytest.mark.servers
async def test_the_client_says_that_an_engine_has_no_such_route() -> None:
    async with serving() as (_, http, _):
        with pytest.raises(EngineRefused):
            await EngineClient(http, "").sleep()
