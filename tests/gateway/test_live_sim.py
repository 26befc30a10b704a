"""The gateway in front of simulated engines as processes, called with the stock openai client over TLS."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from functions.engines.sim.faults import Malformed
from tests.contract.adapters import make_adapter
from tests.contract.servers import Engine, running
from tests.gateway.live import LiveGateway, quiet
from tests.gateway.world import ACME_KEY, BOT_V1, DIGEST_V1, POOL

pytestmark = pytest.mark.servers
WELL = {"reset_after_tokens": None, "malformed": None}
MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Engine]]:
    folder = tmp_path_factory.mktemp("sim")
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(running("sim", folder / f"engine-{i}.log", "--sim-step-ms", "5")) for i in range(2)
        ]
        adapter = make_adapter(folder / "adapter", base=POOL, seed=1)
        for engine in started:
            body = {"lora_name": BOT_V1, "lora_path": str(adapter)}
            httpx.post(f"{engine.base_url}/v1/load_lora_adapter", json=body).raise_for_status()
        yield started


@pytest.fixture
def fleet(live: LiveGateway, engines: list[Engine]) -> Iterator[list[Engine]]:
    """Both engines are known; the first is preferred while both are idle."""
    for number, engine in enumerate(engines):
        httpx.post(f"{engine.base_url}/sim/faults", json=WELL).raise_for_status()
        live.beat(f"sim-{number}", engine.port, prefill_ms_per_token=float(number), adapters=(BOT_V1,))
    yield engines
    for number, engine in enumerate(engines):
        live.beat(f"sim-{number}", engine.port, phase="dead")


@pytest.fixture
async def ai(live: LiveGateway, trust: ssl.SSLContext) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        httpx.AsyncClient(verify=trust) as http,
        openai.AsyncOpenAI(
            base_url=f"https://localhost:{live.tls_port}/v1",
            api_key=ACME_KEY,
            http_client=http,
            max_retries=0,
            _strict_response_validation=True,
        ) as client,
    ):
        yield client


@pytest.mark.parametrize("model", [POOL, "acme/bot", "acme/bot:stable", "acme/bot@v1"])
async def test_the_stock_client_streaming_and_not(fleet: list[Engine], ai: openai.AsyncOpenAI, model: str) -> None:
    raw = await ai.chat.completions.with_raw_response.create(model=model, messages=MESSAGES, max_tokens=16, seed=1)
    whole = raw.parse()
    assert whole.model == model and whole.choices[0].message.content
    assert raw.headers["x-shoal-digest"] == DIGEST_V1 and raw.headers["x-request-id"]
    assert whole.usage is not None and whole.usage.completion_tokens > 0
    text, counted = "", None
    stream = await ai.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=16, seed=1, stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        assert chunk.model == model
        counted = chunk.usage or counted
        text += chunk.choices[0].delta.content or "" if chunk.choices else ""
    assert text == whole.choices[0].message.content
    assert counted is not None and counted.completion_tokens == whole.usage.completion_tokens


async def test_completions_and_tokens(fleet: list[Engine], ai: openai.AsyncOpenAI) -> None:
    answer = await ai.completions.create(model="acme/bot", prompt="once upon", max_tokens=8)
    assert answer.model == "acme/bot" and answer.choices[0].text
    tokens = await ai.post("/tokenize", body={"model": POOL, "prompt": "once upon"}, cast_to=httpx.Response)
    assert tokens.json()["count"] > 0


async def test_the_engines_own_refusals_have_the_callers_names(fleet: list[Engine], ai: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await ai.chat.completions.create(model="acme/bot", messages=MESSAGES, max_tokens=100_000)
    assert BOT_V1 not in str(refused.value.body)
    assert refused.value.response.headers["x-request-id"]


async def test_an_engine_that_resets_mid_stream(fleet: list[Engine], live: LiveGateway, ai: openai.AsyncOpenAI) -> None:
    httpx.post(f"{fleet[0].base_url}/sim/faults", json={"reset_after_tokens": 3}).raise_for_status()
    with pytest.raises(openai.APIError) as lost:
        stream = await ai.chat.completions.create(model=POOL, messages=MESSAGES, max_tokens=64, stream=True)
        async for _ in stream:
            pass
    assert lost.value.code == "upstream_lost"
    assert await quiet(live)


@pytest.mark.parametrize("kind", [kind.value for kind in Malformed])
async def test_a_malformed_stream_ends_in_an_error_or_is_made_good(
    fleet: list[Engine], live: LiveGateway, ai: openai.AsyncOpenAI, kind: str
) -> None:
    """The first engine talks nonsense, the second is well: no nonsense reaches the client."""
    httpx.post(f"{fleet[0].base_url}/sim/faults", json={"malformed": kind}).raise_for_status()
    text = ""
    try:
        stream = await ai.chat.completions.create(model=POOL, messages=MESSAGES, max_tokens=16, stream=True)
        async for chunk in stream:
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        assert text
    except openai.APIError as error:
        assert error.code == "upstream_lost" and kind in ("huge_line", "non_json", "truncated_chunk")
    live.call(live.refill_retries)
    assert await quiet(live)


async def test_a_client_that_leaves_frees_the_engine_within_a_second(
    fleet: list[Engine], live: LiveGateway, ai: openai.AsyncOpenAI, tmp_path: Path
) -> None:
    streams = []
    for _ in range(5):
        stream = await ai.chat.completions.create(
            model=POOL, messages=MESSAGES, max_tokens=900, stream=True, extra_body={"ignore_eos": True}
        )
        await anext(aiter(stream))
        streams.append(stream)
    assert sum([await running_requests(engine) for engine in fleet]) == 5
    await asyncio.gather(*(stream.close() for stream in streams))
    async with asyncio.timeout(1.0):
        while sum([await running_requests(engine) for engine in fleet]):
            await asyncio.sleep(0.05)
    assert await quiet(live)


async def running_requests(engine: Engine) -> float:
    async with httpx.AsyncClient() as http:
        metrics = (await http.get(f"{engine.base_url}/metrics")).text
    lines = [line for line in metrics.splitlines() if line.startswith("vllm:num_requests_running")]
    return sum(float(line.split()[-1]) for line in lines)
