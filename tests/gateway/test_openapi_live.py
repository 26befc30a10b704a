"""Answers of a gateway, on and off the fast lane, match /openapi.json, headers included."""

from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest
from jsonschema import Draft202012Validator

from tests.contract.servers import running
from tests.gateway.live import CALL_S, LiveGateway
from tests.gateway.rig import ACME_KEY, POOL

pytestmark = pytest.mark.servers
CHAT = {"model": POOL, "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 4}
_OF_THE_SERVER = {"content-type", "content-length", "transfer-encoding", "connection", "date", "server"}


@pytest.fixture(scope="module")
def client(live: LiveGateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    key = {"authorization": f"Bearer {ACME_KEY}"}
    base_url = f"http://127.0.0.1:{live.plain_port}"
    with (
        running("sim", tmp_path_factory.mktemp("sim") / "engine.log") as engine,
        httpx.Client(base_url=base_url, headers=key, timeout=CALL_S) as called,
    ):
        live.beat("sim", engine.port, adapters=())
        yield called


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> dict[str, Any]:
    found = client.get("/openapi.json", headers={"authorization": ""})
    assert found.status_code == 200, "for whoever has no key, too"
    return dict(found.json())


def described(document: dict[str, Any], answer: httpx.Response, path: str) -> dict[str, Any]:
    """Return the document's schema for the answer, after checking the answer's headers."""
    part = document["paths"][path][answer.request.method.lower()]["responses"][str(answer.status_code)]
    if "$ref" in part:
        part = document["components"]["responses"][part["$ref"].rsplit("/", 1)[1]]
    unknown = set(answer.headers) - set(part["headers"]) - _OF_THE_SERVER
    assert unknown - {"cache-control"} == set()
    assert "x-request-id" in answer.headers
    return dict(part["content"])


def check(document: dict[str, Any], schema: dict[str, Any], value: object) -> None:
    Draft202012Validator({**schema, "components": document["components"]}).validate(value)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/chat/completions", CHAT),
        ("POST", "/v1/chat/completions", CHAT | {"n": 2, "logprobs": True}),
        ("POST", "/v1/completions", {"model": POOL, "prompt": "a b c", "max_tokens": 4}),
        ("POST", "/v1/tokenize", {"model": POOL, "prompt": "a b c"}),
        ("POST", "/v1/detokenize", {"model": POOL, "tokens": [1, 2, 3]}),
        ("GET", "/v1/models", None),
        ("GET", "/v1/models/{model}", None),
        ("GET", "/healthz", None),
        ("GET", "/readyz", None),
    ],
)
def test_answers_match_their_schema(
    document: dict[str, Any], client: httpx.Client, method: str, path: str, body: dict[str, Any] | None
) -> None:
    answer = client.request(method, path.format(model=POOL), json=body)
    assert answer.status_code == 200, answer.text
    check(document, described(document, answer, path)["application/json"]["schema"], answer.json())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_stream_events_match_their_schema(document: dict[str, Any], client: httpx.Client, path: str) -> None:
    body = CHAT if path.endswith("chat/completions") else {"model": POOL, "prompt": "a b c", "max_tokens": 4}
    answer = client.post(path, json=body | {"stream": True, "stream_options": {"include_usage": True}})
    schema = described(document, answer, path)["text/event-stream"]["schema"]
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]" and len(events) > 2
    for event in events:
        check(document, schema, orjson.loads(event))


@pytest.mark.parametrize(
    ("path", "body", "key", "status"),
    [
        ("/v1/chat/completions", CHAT | {"n": 9}, ACME_KEY, 400),
        ("/v1/chat/completions", CHAT, "wrong", 401),
        ("/v1/chat/completions", CHAT | {"model": "nobody/none"}, ACME_KEY, 404),
        ("/v1/embeddings", {"model": POOL, "input": "x"}, ACME_KEY, 400),
        ("/v1/messages", {"model": "nobody/none", "messages": CHAT["messages"], "max_tokens": 1}, ACME_KEY, 404),
    ],
)
def test_rejections_match_their_schema(
    document: dict[str, Any], client: httpx.Client, path: str, body: dict[str, Any], key: str, status: int
) -> None:
    answer = client.post(path, json=body, headers={"authorization": f"Bearer {key}"})
    assert answer.status_code == status, answer.text
    check(document, described(document, answer, path)["application/json"]["schema"], answer.json())
