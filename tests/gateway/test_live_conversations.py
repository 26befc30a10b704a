"""Conversations over a real Valkey: started at one gateway and continued at another, both with the stock client."""

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest

from functions.api.snapshot import ConversationsPart
from functions.gateway.limits import Limits
from tests.contract.servers import running
from tests.gateway import rig
from tests.gateway.live import CALL_S, LiveGateway, quiet
from tests.gateway.rig import ACME_KEY, GLOBEX_KEY, POOL, catalogue

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def two(
    certificate: tuple[Path, Path], valkey_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LiveGateway, LiveGateway]]:
    acme, globex = rig.snapshot().tenants
    first = catalogue(tenants=(msgspec.structs.replace(acme, conversations=ConversationsPart()), globex))
    with (
        running("sim", tmp_path_factory.mktemp("sim") / "engine.log") as engine,
        LiveGateway(Limits(), certificate, first=first, conversations_url=valkey_url) as one,
        LiveGateway(Limits(), certificate, first=first, conversations_url=valkey_url) as other,
    ):
        for gateway in (one, other):
            gateway.beat("sim", engine.port, adapters=())
        yield one, other


@asynccontextmanager
async def calling(gateway: LiveGateway, trust: ssl.SSLContext) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        httpx.AsyncClient(verify=trust, timeout=CALL_S) as http,
        openai.AsyncOpenAI(
            base_url=f"https://localhost:{gateway.tls_port}/v1", api_key=ACME_KEY, http_client=http, max_retries=2
        ) as client,
    ):
        yield client


def said(content: str) -> dict[str, Any]:
    message = {"role": "user", "content": content}
    return {"model": POOL, "messages": [message], "max_tokens": 32, "extra_headers": {"X-Session-ID": "s1"}}


async def test_session_continues_at_another_gateway(
    two: tuple[LiveGateway, LiveGateway], trust: ssl.SSLContext
) -> None:
    one, other = two
    async with calling(one, trust) as ai:
        first = await ai.chat.completions.with_raw_response.create(**said("I am Ada, and I count."))
        assert first.headers["x-shoal-conversation"] == "recalled=0"
        alone = first.parse().usage
    async with calling(other, trust) as ai:
        text, usage = "", None
        stream = await ai.chat.completions.create(**said("What do I do?"), stream=True, stream_options=WITH_USAGE)
        async for chunk in stream:
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            usage = chunk.usage or usage
        assert text == "What do I do?", "the simulated engine repeats what is said last"
        assert alone is not None and usage is not None and usage.prompt_tokens > alone.prompt_tokens
    async with calling(one, trust) as ai:
        third = await ai.chat.completions.with_raw_response.create(**said("Go on."))
        assert third.headers["x-shoal-conversation"] == "recalled=4", "what was streamed there is known here"
    assert await quiet(one) and await quiet(other)


async def test_a_session_is_deleted_at_any_gateway(two: tuple[LiveGateway, LiveGateway], trust: ssl.SSLContext) -> None:
    one, other = two
    asked = said("Remember me.") | {"extra_headers": {"X-Session-ID": "a/../b;c %2F"}}
    async with calling(one, trust) as ai:
        for recalled in (b"recalled=0", b"recalled=2"):
            first = await ai.chat.completions.with_raw_response.create(**asked)
            assert first.headers["x-shoal-conversation"].encode() == recalled
    async with httpx.AsyncClient(verify=trust, timeout=CALL_S) as http:
        url = f"https://localhost:{other.tls_port}/v1/conversations"
        named = {"X-Session-ID": "a/../b;c %2F"}
        rival = await http.delete(url, headers={"authorization": f"Bearer {GLOBEX_KEY}", **named})
        assert rival.json()["deleted"] is False, "another tenant's session of that name is another session"
        assert (await http.delete(url, headers=named)).status_code == 401
        own = {"authorization": f"Bearer {ACME_KEY}"}
        assert (await http.delete(url, headers=own)).json()["error"]["param"] == "X-Session-ID"
        for deleted in (True, False):
            answer = await http.delete(url, headers=own | named)
            assert answer.json() == {"id": named["X-Session-ID"], "object": "conversation.deleted", "deleted": deleted}
    async with calling(one, trust) as ai:
        anew = await ai.chat.completions.with_raw_response.create(**asked)
        assert anew.headers["x-shoal-conversation"] == "recalled=0"
    assert await quiet(one) and await quiet(other)


WITH_USAGE: Any = {"include_usage": True}
