"""The gateway in front of simulated engine processes, called with the stock openai client over TLS."""

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from functions.engines.sim.faults import Malformed
from tests.contract.adapters import make_adapter
from tests.contract.servers import Engine, running
from tests.fleets import wait_until
from tests.gateway.live import CALL_S, PATIENCE_S, LiveGateway, quiet
from tests.gateway.rig import ACME_KEY, BOT_V1, DIGEST_V1, POOL, catalogue, quota

pytestmark = pytest.mark.servers
WELL = {"reset_after_tokens": None, "malformed": None, "slow_factor": 1.0}
BROKEN_LATE = ("huge_line", "non_json", "truncated_chunk", "wrong_content_length")  # after the first token was sent
_lives = itertools.count(1)  # heartbeats of a new agent make the gateway forget its evidence against the old one
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
            httpx.post(f"{engine.base_url}/v1/load_lora_adapter", json=body, timeout=CALL_S).raise_for_status()
        yield started


@pytest.fixture
def fleet(live: LiveGateway, engines: list[Engine]) -> Iterator[list[Engine]]:
    """Make both engines known; the first is preferred while both are idle, whatever the last test showed of it."""
    life = next(_lives)
    wait_until("the gateway has let go of the last test's requests", lambda: live.open_requests() == 0, PATIENCE_S)
    for number, engine in enumerate(engines):
        set_faults(engine, **WELL)
        live.beat(
            f"sim-{number}", engine.port, prefill_ms_per_token=20.0 * number, adapters=(BOT_V1,), incarnation=life
        )
    yield engines
    for number, engine in enumerate(engines):
        live.beat(f"sim-{number}", engine.port, phase="dead", incarnation=life)


def set_faults(engine: Engine, **faults: Any) -> None:
    httpx.post(f"{engine.base_url}/sim/faults", json=faults, timeout=CALL_S).raise_for_status()


@pytest.fixture
async def ai(live: LiveGateway, trust: ssl.SSLContext) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        httpx.AsyncClient(verify=trust, timeout=CALL_S) as http,
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


async def test_engine_errors_name_the_callers_model(fleet: list[Engine], ai: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await ai.chat.completions.create(model="acme/bot", messages=MESSAGES, max_tokens=100_000)
    assert BOT_V1 not in str(refused.value.body)
    assert refused.value.response.headers["x-request-id"]


async def test_engine_reset_mid_stream_is_upstream_lost(
    fleet: list[Engine], live: LiveGateway, ai: openai.AsyncOpenAI
) -> None:
    """The reset comes seconds after the first token: otherwise nothing might have been sent, and the other engine would
    answer."""
    set_faults(fleet[0], reset_after_tokens=6, slow_factor=50.0)
    with pytest.raises(openai.APIError) as lost:
        stream = await ai.chat.completions.create(
            model=POOL, messages=MESSAGES, max_tokens=64, stream=True, extra_body={"ignore_eos": True}
        )
        async for _ in stream:
            pass
    assert lost.value.code == "upstream_lost"
    assert await quiet(live)


@pytest.mark.parametrize("kind", [kind.value for kind in Malformed])
async def test_malformed_stream_is_retried_or_ends_with_an_error(
    fleet: list[Engine], live: LiveGateway, ai: openai.AsyncOpenAI, kind: str
) -> None:
    """The first engine sends invalid bytes and the second works: nothing invalid reaches the client."""
    set_faults(fleet[0], malformed=kind)
    text = ""
    try:
        stream = await ai.chat.completions.create(model=POOL, messages=MESSAGES, max_tokens=16, stream=True)
        async for chunk in stream:
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        assert text
    except openai.APIError as error:
        assert error.code == "upstream_lost" and kind in BROKEN_LATE
    live.call(live.refill_retries)
    assert await quiet(live)


async def test_a_client_that_leaves_frees_the_engine_within_a_second(
    fleet: list[Engine], live: LiveGateway, ai: openai.AsyncOpenAI, tmp_path: Path
) -> None:
    for engine in fleet:
        set_faults(engine, slow_factor=20.0)  # otherwise their streams end by themselves, in 5 s
    streams = []
    for _ in range(5):
        stream = await ai.chat.completions.create(
            model=POOL, messages=MESSAGES, max_tokens=900, stream=True, extra_body={"ignore_eos": True}
        )
        await anext(aiter(stream))
        streams.append(stream)
    assert sum([await running_requests(engine) for engine in fleet]) == 5
    await asyncio.gather(*(stream.close() for stream in streams))
    async with asyncio.timeout(5.0):  # five times the promise, for slower machines
        while sum([await running_requests(engine) for engine in fleet]):
            await asyncio.sleep(0.05)
    assert await quiet(live)


async def running_requests(engine: Engine) -> float:
    async with httpx.AsyncClient(timeout=CALL_S) as http:
        metrics = (await http.get(f"{engine.base_url}/metrics")).text
    lines = [line for line in metrics.splitlines() if line.startswith("vllm:num_requests_running")]
    return sum(float(line.split()[-1]) for line in lines)


@pytest.fixture
def tier(live: LiveGateway) -> Iterator[Callable[..., None]]:
    """Yield a function that pushes limits for the caller's tier; the rig's own (none) are restored at the end."""
    epochs = itertools.count(2)
    yield lambda **limits: live.call(lambda: live.gateway.swap(catalogue(next(epochs), quotas=(quota(**limits),))))
    live.call(lambda: live.gateway.swap(catalogue(next(epochs))))


async def test_output_cap_of_a_tier_limits_the_engine(
    fleet: list[Engine], ai: openai.AsyncOpenAI, tier: Callable[..., None]
) -> None:
    tier(max_output_tokens=5)
    for_ever = {"ignore_eos": True}
    whole = await ai.chat.completions.create(model="acme/bot", messages=MESSAGES, n=2, extra_body=for_ever)
    assert whole.usage is not None and whole.usage.completion_tokens == 2 * 5, "per choice"
    assert {choice.finish_reason for choice in whole.choices} == {"length"}
    completion = await ai.completions.create(model=POOL, prompt="once upon", extra_body=for_ever)
    assert completion.usage is not None and completion.usage.completion_tokens == 5
    stream = await ai.chat.completions.create(
        model=POOL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}, extra_body=for_ever
    )
    counted = [chunk.usage async for chunk in stream][-1]
    assert counted is not None and counted.completion_tokens == 5
    with pytest.raises(openai.BadRequestError, match="allows 5 tokens of output") as refused:
        await ai.chat.completions.create(model=POOL, messages=MESSAGES, max_completion_tokens=6)
    assert (refused.value.param, refused.value.code) == ("max_completion_tokens", "output_length_exceeded")


async def test_request_limit_of_a_tier_raises_rate_limit_error(
    fleet: list[Engine], ai: openai.AsyncOpenAI, tier: Callable[..., None]
) -> None:
    tier(requests_per_minute=1000)
    raw = await ai.chat.completions.with_raw_response.create(model=POOL, messages=MESSAGES, max_tokens=2)
    assert int(raw.headers["x-ratelimit-remaining-requests"]) < 1000
    tier(requests_per_minute=1, concurrent_requests=1)
    with pytest.raises(openai.RateLimitError) as refused:
        for _ in range(2):  # on a slow machine, the request above may have been refilled already
            await ai.chat.completions.create(model=POOL, messages=MESSAGES, max_tokens=2)
    assert refused.value.code == "rate_limit_exceeded"
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60
    tier()
    await ai.chat.completions.create(model=POOL, messages=MESSAGES, max_tokens=2)
