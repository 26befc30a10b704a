"""Every route besides chat and completions, through the gateway on TLS to simulated engines, with the stock clients."""

import math
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from functions.api.snapshot import PoolEntry
from functions.gateway.limits import Limits
from tests.contract.servers import Engine, running
from tests.gateway.live import CALL_S, LiveGateway, quiet
from tests.gateway.rig import ACME_KEY, POOL, catalogue

pytestmark = pytest.mark.servers
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def generating(live: LiveGateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGateway]:
    with running("sim", tmp_path_factory.mktemp("sim") / "generate.log") as engine:
        yield known(live, engine)


@pytest.fixture(scope="module")
def embedding(certificate: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGateway]:
    pools = (PoolEntry(POOL, 2048, task="embed"),)
    log = tmp_path_factory.mktemp("sim") / "embed.log"
    with (
        LiveGateway(Limits(), certificate, first=catalogue(pools=pools)) as gateway,
        running("sim", log, "--runner", "pooling") as engine,
    ):
        yield known(gateway, engine)


def known(gateway: LiveGateway, engine: Engine) -> LiveGateway:
    gateway.beat("sim", engine.port, adapters=())
    return gateway


@asynccontextmanager
async def calling(
    gateway: LiveGateway, trust: ssl.SSLContext, *, strict: bool = True
) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        httpx.AsyncClient(verify=trust, timeout=CALL_S) as http,
        openai.AsyncOpenAI(
            base_url=f"https://localhost:{gateway.tls_port}/v1",
            api_key=ACME_KEY,
            http_client=http,
            max_retries=2,
            _strict_response_validation=strict,
        ) as client,
    ):
        yield client


async def test_embeddings_with_the_stock_client(embedding: LiveGateway, trust: ssl.SSLContext) -> None:
    """The client requests base64 by default and reads either encoding; in strict mode it checks before it decodes."""
    async with calling(embedding, trust, strict=False) as ai:
        texts = ["the cat sat", "a cat sat", "stocks fell"]
        found = await ai.embeddings.create(model=POOL, input=texts)
        assert found.model == POOL and found.usage.prompt_tokens > 0
        one, near, far = (item.embedding for item in found.data)
        assert math.isclose(math.fsum(value * value for value in one), 1.0, abs_tol=1e-5)
        assert dot(one, near) > dot(one, far)
        plain = await ai.embeddings.create(model=POOL, input=texts[0], encoding_format="float", dimensions=16)
        assert len(plain.data[0].embedding) == 16
        with pytest.raises(openai.BadRequestError) as refused:
            await ai.chat.completions.create(model=POOL, messages=[{"role": "user", "content": "hi"}])
        assert refused.value.code == "wrong_model_type" and "/v1/embeddings" in str(refused.value)
    assert await quiet(embedding)


async def test_rerank_and_score_order_by_meaning(embedding: LiveGateway, trust: ssl.SSLContext) -> None:
    documents = ["stocks fell today", "the cat sat on a mat"]
    async with calling(embedding, trust) as ai:
        ranked: Any = await ai.post(
            "/rerank", body={"model": POOL, "query": "cat on a mat", "documents": documents}, cast_to=object
        )
        assert [item["index"] for item in ranked["results"]] == [1, 0]
        scored: Any = await ai.post(
            "/score", body={"model": POOL, "queries": "cat on a mat", "documents": documents}, cast_to=object
        )
        assert scored["data"][1]["score"] > scored["data"][0]["score"] and scored["model"] == POOL


async def test_responses_with_the_stock_client(generating: LiveGateway, trust: ssl.SSLContext) -> None:
    async with calling(generating, trust) as ai:
        whole = await ai.responses.create(model=POOL, input=QUESTION, instructions="Be brief.", max_output_tokens=64)
        assert "Paris" in whole.output_text and whole.model == POOL and whole.status == "completed"
        assert whole.usage is not None and whole.usage.output_tokens > 0
        text, last = "", None
        async for event in await ai.responses.create(model=POOL, input=QUESTION, stream=True):
            text += event.delta if event.type == "response.output_text.delta" else ""
            last = event
        assert text == whole.output_text and last is not None and last.type == "response.completed"
        assert last.response.model == POOL and last.response.usage is not None
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            await ai.responses.create(model=POOL, input="hi", previous_response_id=whole.id)
    assert await quiet(generating)


async def test_messages_with_anthropics_client(generating: LiveGateway) -> None:
    """The anthropic client runs without TLS: its HTTP library does not use this test's certificate authority."""
    anthropic = pytest.importorskip("anthropic", reason="the anthropic package is not installed: pip install anthropic")
    url = f"http://127.0.0.1:{generating.plain_port}"
    asked: dict[str, Any] = {"model": POOL, "max_tokens": 64, "messages": [{"role": "user", "content": QUESTION}]}
    async with anthropic.AsyncAnthropic(base_url=url, api_key=ACME_KEY, max_retries=2, timeout=CALL_S) as ai:
        whole = await ai.messages.create(**asked, system="Be brief.")
        assert "Paris" in whole.content[0].text and whole.model == POOL and whole.usage.output_tokens > 0
        async with ai.messages.stream(**asked) as stream:
            text = await stream.get_final_text()
            final = await stream.get_final_message()
        assert text == whole.content[0].text and final.model == POOL and final.usage.output_tokens > 0
        assert (await ai.messages.count_tokens(model=POOL, messages=asked["messages"])).input_tokens > 0
        with pytest.raises(anthropic.NotFoundError):
            await ai.messages.create(**{**asked, "model": "acme/nothing"})
        with pytest.raises(anthropic.AuthenticationError):
            await ai.with_options(api_key="wrong").messages.create(**asked)
        with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
            await ai.messages.create(**{**asked, "max_tokens": -1})
    assert await quiet(generating)


async def test_messages_events_and_key_header_on_the_wire(generating: LiveGateway, trust: ssl.SSLContext) -> None:
    """Bytes that client libraries hide: the names of events, and the key in its own header."""
    base_url = f"https://localhost:{generating.tls_port}"
    async with httpx.AsyncClient(verify=trust, base_url=base_url, timeout=CALL_S) as http:
        body = {"model": POOL, "max_tokens": 8, "stream": True, "messages": [{"role": "user", "content": "one two"}]}
        answer = await http.post("/v1/messages", json=body, headers={"x-api-key": ACME_KEY})
        names = [line[7:] for line in answer.text.splitlines() if line.startswith("event: ")]
        assert names[0] == "message_start" and names[-1] == "message_stop" and "content_block_delta" in names
        refused = await http.post("/v1/messages", json=body, headers={"x-api-key": "wrong"})
        assert refused.status_code == 401 and refused.json()["error"]["type"] == "authentication_error"


def dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
