"""POST /v1/responses, /v1/messages and /v1/messages/count_tokens, as far as the gateway's dialects depend on them."""

from typing import Any

import httpx
import pytest

from functions.gateway.request.answers import Renaming
from functions.gateway.request.dialects import ANTHROPIC, RESPONSES, Dialect
from tests.contract.servers import MODEL
from tests.contract.talk import FRANCE

PUBLIC = "acme/bot"
CASES = [
    pytest.param(RESPONSES, "/v1/responses", {"input": FRANCE, "max_output_tokens": 6}, id="responses"),
    pytest.param(
        ANTHROPIC, "/v1/messages", {"messages": [{"role": "user", "content": FRANCE}], "max_tokens": 6}, id="messages"
    ),
]
each_dialect = pytest.mark.parametrize(("dialect", "path", "body"), CASES)


def asked(body: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "temperature": 0, **body, **changes}


def event_names(events: bytes) -> list[str]:
    return [line[7:].decode() for line in events.split(b"\n") if line.startswith(b"event: ")]


@each_dialect
async def test_a_whole_answer(http: httpx.AsyncClient, dialect: Dialect, path: str, body: dict[str, Any]) -> None:
    answer = await http.post(path, json=asked(body))
    assert answer.status_code == 200, answer.text
    read = dialect.whole(answer.content, Renaming(MODEL, PUBLIC))
    assert read.usage is not None and read.usage.prompt_tokens > 0 and 0 < read.usage.completion_tokens <= 6
    assert b'"model":"%b"' % PUBLIC.encode() in read.body and MODEL.encode() not in read.body


@each_dialect
async def test_stream_relays_same_events_and_usage(
    http: httpx.AsyncClient, dialect: Dialect, path: str, body: dict[str, Any]
) -> None:
    whole = dialect.whole((await http.post(path, json=asked(body))).content, Renaming(MODEL, MODEL)).usage
    answer = await http.post(path, json=asked(body, stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    relay = dialect.relay(Renaming(MODEL, PUBLIC), False, False, 1 << 20)
    out = relay.feed(answer.content)
    assert relay.done and relay.error is None and relay.events > 0, answer.text
    assert MODEL.encode() not in out and event_names(out) == event_names(answer.content)
    assert whole is not None and relay.usage is not None
    assert relay.usage.completion_tokens == whole.completion_tokens
    assert relay.usage.prompt_tokens == whole.prompt_tokens
    opening = out[: out.index(b"event: " + next(name for name in event_names(out) if "delta" in name).encode())]
    assert dialect.first_sign(opening) == "nothing_yet" and dialect.first_sign(out) == "answering"


@each_dialect
@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_model_is_404(
    http: httpx.AsyncClient, dialect: Dialect, path: str, body: dict[str, Any], stream: bool
) -> None:
    answer = await http.post(path, json=asked(body, model="nobody", stream=stream))
    assert answer.status_code == 404 and answer.json()["error"]["type"] == "NotFoundError"
    assert "does not exist" in answer.json()["error"]["message"]


async def test_count_tokens_matches_usage_of_an_answer(http: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": FRANCE}]}
    counted = (await http.post("/v1/messages/count_tokens", json=body)).json()["input_tokens"]
    answer = await http.post("/v1/messages", json=body | {"max_tokens": 1})
    usage = ANTHROPIC.whole(answer.content, Renaming(MODEL, MODEL)).usage
    assert usage is not None and usage.prompt_tokens == counted


@pytest.mark.parametrize("path", ["/v1/embeddings", "/classify", "/score", "/rerank"])
async def test_a_generating_engine_has_no_pooling_routes(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.post(path, json={"model": MODEL, "input": "x", "query": "x", "documents": "x"})
    assert answer.status_code == 404 and answer.json() == {"detail": "Not Found"}
