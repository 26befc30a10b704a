"""Streams of responses and messages that end too soon: the client leaves, or the engine is lost."""

import asyncio
import ssl

import httpx
import openai
import orjson
import pytest

from tests.gateway.live import CALL_S, PATIENCE_S, LiveGateway, Served, Way, client, engine, quiet
from tests.gateway.rig import ACME_KEY, POOL

pytestmark = pytest.mark.servers
FIRST_EVENTS = {
    "/v1/responses": b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}\n\n',
    "/v1/messages": b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"a"}}\n\n',
}


@pytest.mark.parametrize("path", sorted(FIRST_EVENTS))
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_client_that_leaves_stops_the_engine(live: LiveGateway, path: str, stream: bool) -> None:
    """This holds off the fast lane too: during a stream, and while the client waits for a whole answer."""

    async def speaks_for_ever(served: Served) -> None:
        if stream:
            await served.begin_stream()
            await served.event(FIRST_EVENTS[path])
        await served.until_dropped()

    said = {"input": "hi"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "hi"}]}
    limit = {"max_output_tokens" if "input" in said else "max_tokens": 8}
    async with (
        engine(live, speaks_for_ever) as played,
        client(live, Way("plain", tls=False), ssl.create_default_context()) as caller,
    ):
        body = orjson.dumps({"model": POOL, "stream": stream, **said, **limit})
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {ACME_KEY}\r\ncontent-type: application/json\r\n"
        await caller.send(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        if stream:
            await caller.until(b"delta")
        async with asyncio.timeout(PATIENCE_S):
            while not played.served:
                await asyncio.sleep(0.005)
        left_s = caller.leave()
        await played.dropped_within_s(left_s)
    assert await quiet(live)


async def test_broken_response_ends_with_an_error_in_sequence(live: LiveGateway, trust: ssl.SSLContext) -> None:
    """The stock client reads the error as an event of the stream with the next sequence number."""
    head = {"id": "resp_1", "object": "response", "model": POOL, "output": [], "tools": [], "created_at": 1.0}
    told = head | {"parallel_tool_calls": True, "tool_choice": "auto", "status": "in_progress"}
    place = {"item_id": "m", "output_index": 0, "content_index": 0, "logprobs": []}

    async def breaks(served: Served) -> None:
        await served.begin_stream()
        for number, (kind, more) in enumerate(
            [("response.created", {"response": told}), ("response.output_text.delta", place | {"delta": "Par"})]
        ):
            event = orjson.dumps({"type": kind, "sequence_number": number, **more})
            await served.event(b"event: %b\ndata: %b\n\n" % (kind.encode(), event))
        await served.go_on.wait()  # the client has them: read together with the reset, they would be lost
        served.writer.transport.abort()

    async with (
        engine(live, breaks) as played,
        httpx.AsyncClient(verify=trust, timeout=CALL_S) as http,
        openai.AsyncOpenAI(
            base_url=f"https://localhost:{live.tls_port}/v1", api_key=ACME_KEY, http_client=http, max_retries=0
        ) as ai,
    ):
        events = []
        async for event in await ai.responses.create(model=POOL, input="hi", stream=True):
            events.append(event)
            if event.type == "response.output_text.delta":
                played.served[0].go_on.set()
    assert [event.type for event in events] == ["response.created", "response.output_text.delta", "error"]
    assert [event.sequence_number for event in events] == [0, 1, 2]
    assert events[-1].type == "error" and events[-1].code == "upstream_lost"
    assert await quiet(live)
