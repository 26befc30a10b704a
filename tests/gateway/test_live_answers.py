"""Both lanes, over TLS and plain TCP: the same answers, byte for byte."""

import asyncio
import json
import ssl

import pytest

from tests.gateway import sse
from tests.gateway.client_rig import get, post
from tests.gateway.live import WAYS, LiveGateway, Served, Way, client, engine, quiet, well
from tests.gateway.rig import BOT_V1, DIGEST_V1, GLOBEX_KEY

pytestmark = [pytest.mark.servers, pytest.mark.parametrize("way", WAYS, ids=str)]
MESSAGES = [{"role": "user", "content": "ahoj"}]


def body(route: str, **fields: object) -> bytes:
    content = {"messages": MESSAGES} if route.endswith("chat/completions") else {"prompt": "ahoj"}
    return sse.compact({"model": "acme/bot", **content, **fields})


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
async def test_a_whole_answer(live: LiveGateway, trust: ssl.SSLContext, way: Way, route: str) -> None:
    async with engine(live) as played, client(live, way, trust) as caller:
        await caller.send(post(body(route), path=route, x_request_id="mine-1"))
        answer = await caller.answer()
        assert answer.status == 200
        assert answer.body == sse.whole("acme/bot", "you said ahoj")
        assert answer.headers["x-request-id"] == "mine-1"
        assert answer.headers["x-shoal-model"] == "acme/bot@v1"
        assert answer.headers["x-shoal-digest"] == DIGEST_V1
        assert answer.headers["x-shoal-replica"] == played.name
        assert "server" not in answer.headers and "date" not in answer.headers
        assert played.served[0].model == BOT_V1
        assert b"x-request-id: mine-1" in played.served[0].head
        assert b"authorization" not in played.served[0].head.lower()


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("include_usage", [False, True])
async def test_a_stream(live: LiveGateway, trust: ssl.SSLContext, way: Way, route: str, include_usage: bool) -> None:
    async with engine(live), client(live, way, trust) as caller:
        options = {"stream_options": {"include_usage": True}} if include_usage else {}
        await caller.send(post(body(route, stream=True, **options), path=route))
        answer = await caller.answer()
        name = "acme/bot"
        words = sse.token(name, "you") + sse.token(name, " said ") + sse.token(name, "ahoj")
        counted = sse.usage(name) if include_usage else b""
        assert answer.body == sse.role(name) + words + sse.finish(name) + counted + sse.DONE
        assert answer.headers["content-type"].startswith("text/event-stream")


async def test_many_requests_share_one_client_and_one_engine_connection(
    live: LiveGateway, trust: ssl.SSLContext, way: Way
) -> None:
    async with engine(live) as played, client(live, way, trust) as caller:
        for number in range(20):
            await caller.send(post(body("/v1/chat/completions", stream=number % 2 == 0)))
            assert (await caller.answer()).status == 200
        assert len({served.writer for served in played.served}) == 1, "engine connections are kept"


async def test_events_are_sent_as_they_arrive(live: LiveGateway, trust: ssl.SSLContext, way: Way) -> None:
    more = asyncio.Event()

    async def hesitant(served: Served) -> None:
        await served.begin_stream()
        await served.event(sse.token(served.model, "first"))
        await more.wait()
        await served.event(sse.finish(served.model) + sse.DONE)
        await served.end_stream()

    async with engine(live, hesitant), client(live, way, trust) as caller:
        await caller.send(post(body("/v1/chat/completions", stream=True)))
        await caller.until(sse.token("acme/bot", "first"))
        more.set()
        assert (await caller.answer()).body.endswith(sse.DONE)


async def test_text_in_any_language_and_large_bodies(live: LiveGateway, trust: ssl.SSLContext, way: Way) -> None:
    said = '\u00e9\U0001f41f "quoted" \\ \n' * 20_000
    async with engine(live), client(live, way, trust) as caller:
        document = {"model": "acme/bot", "messages": [{"role": "user", "content": said}]}
        await caller.send(post(json.dumps(document).encode()))
        answer = json.loads((await caller.answer()).body)
        assert answer["choices"][0]["message"]["content"] == f"you said {said}"


async def test_concurrent_requests_do_not_mix(live: LiveGateway, trust: ssl.SSLContext, way: Way) -> None:
    async def send_chat(number: int) -> None:
        async with client(live, way, trust) as caller:
            document = {"model": "acme/bot", "stream": True, "messages": [{"role": "user", "content": f"n{number}"}]}
            await caller.send(post(sse.compact(document)))
            answer = (await caller.answer()).body
            assert sse.token("acme/bot", f"n{number}") in answer and answer.endswith(sse.DONE)

    async with engine(live), engine(live):
        await asyncio.gather(*(send_chat(number) for number in range(40)))
    assert await quiet(live)


async def test_a_hot_path_with_a_query_is_served(live: LiveGateway, trust: ssl.SSLContext, way: Way) -> None:
    async with engine(live), client(live, way, trust) as caller:
        await caller.send(post(body("/v1/chat/completions"), path="/v1/chat/completions?api-version=1"))
        assert (await caller.answer()).status == 200


async def test_http_1_0(live: LiveGateway, trust: ssl.SSLContext, way: Way) -> None:
    async with engine(live), client(live, way, trust) as caller:
        await caller.send(post(body("/v1/chat/completions"), version="1.0"))
        assert (await caller.answer()).status == 200
        assert await caller.rest() == b"", "and closes"


async def test_tokenize(live: LiveGateway, trust: ssl.SSLContext, way: Way) -> None:
    async def tokenizes(served: Served) -> None:
        assert served.head.startswith(b"POST /tokenize ")
        await served.answer(b'{"count":1,"max_model_len":2048,"tokens":[7]}')

    async with engine(live, tokenizes), client(live, way, trust) as caller:
        await caller.send(post(sse.compact({"model": "acme/bot", "prompt": "x"}), path="/v1/tokenize"))
        assert json.loads((await caller.answer()).body)["tokens"] == [7]


async def test_expect_continue(live: LiveGateway, trust: ssl.SSLContext, way: Way) -> None:
    async with engine(live), client(live, way, trust) as caller:
        head, content = post(body("/v1/chat/completions"), expect="100-continue").split(b"\r\n\r\n")
        await caller.send(head + b"\r\n\r\n")
        await caller.until(b"HTTP/1.1 100 Continue\r\n\r\n")
        await caller.send(content)
        assert [answer.status for answer in await caller.answers()] == [100, 200]


async def test_models(live: LiveGateway, trust: ssl.SSLContext, way: Way) -> None:
    async with engine(live), client(live, way, trust) as caller:
        await caller.send(get("/v1/models", authorization=f"Bearer {GLOBEX_KEY}"))
        listed = json.loads((await caller.answer()).body)
        assert [model["id"] for model in listed["data"]] == ["globex/bot"]
        for path in ("/v1/models/globex/bot", "/v1/models/globex%2Fbot", "/v1/models/globex%2Fbot%3Astable"):
            await caller.send(get(path, authorization=f"Bearer {GLOBEX_KEY}"))
            assert (await caller.answer()).status == 200, path
        await caller.send(get("/v1/models/acme/bot", authorization=f"Bearer {GLOBEX_KEY}"))
        assert (await caller.answer()).code == "model_not_found"


async def test_health(live: LiveGateway, trust: ssl.SSLContext, way: Way) -> None:
    async with client(live, way, trust) as caller:
        await caller.send(get("/healthz"))
        assert (await caller.answer()).status == 200
        await caller.send(get("/readyz"))
        unready = await caller.answer()
        assert (unready.status, json.loads(unready.body)["reason"]) == (503, "no replica is ready yet")
        async with engine(live, well):
            await caller.send(get("/readyz"))
            ready = await caller.answer()
            assert ready.status == 200
            assert json.loads(ready.body) == {"status": "ready", "snapshot_epoch": 1, "revision": "test"}
