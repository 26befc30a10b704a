"""Routes as clients of vLLM, Jina, Cohere and load balancers spell them: the same answers, not 404."""

import httpx
import pytest

from functions.gateway.http.asgi import make_app
from tests.gateway.rig import ACME_KEY, Rig


def client() -> httpx.AsyncClient:
    rig = Rig().with_replicas("r0")
    headers = {"authorization": f"Bearer {ACME_KEY}"}
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(make_app(rig.gateway)), base_url="https://x", headers=headers
    )


@pytest.mark.parametrize("path", ["/rerank", "/v2/rerank", "/score", "/classify", "/tokenize", "/detokenize"])
async def test_alias_path_serves_the_same_route(path: str) -> None:
    async with client() as gateway:
        body = {"model": "acme/bot"}
        answer = await gateway.post(path, json=body)
        same = await gateway.post("/v1/" + path.rsplit("/", 1)[1], json=body)
    assert answer.status_code == same.status_code == 400
    assert answer.json()["error"]["message"] == same.json()["error"]["message"]


async def test_a_load_balancers_ping_needs_no_key() -> None:
    async with client() as gateway:
        answer = await gateway.get("/ping", headers={"authorization": ""})
    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/v3/rerank", "/v2/score", "/%72erank", "/rerank/", "/chat/completions"])
async def test_unknown_path_is_404(path: str) -> None:
    async with client() as gateway:
        assert (await gateway.post(path, json={"model": "acme/bot"})).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "instead"),
    [
        ("POST", "/pooling", "/v1/embeddings"),
        ("POST", "/v2/embed", "/v1/embeddings"),
        ("POST", "/v1/moderations", "/v1/classify"),
        ("GET", "/version", "/v1/models"),
        ("POST", "/v1/uploads", "/v1/files"),
        ("POST", "/v1/uploads/upload_1/parts", "/v1/files"),
        ("POST", "/v1/messages/batches", "/v1/batches"),
        ("GET", "/v1/messages/batches/x/results", "/v1/batches"),
        ("POST", "/v1/audio/transcriptions", "input_audio"),
        ("POST", "/v1/audio/translations", "input_audio"),
        ("GET", "/v1/responses/resp_1", "not stored"),
        ("POST", "/v1/responses/resp_1/cancel", "not stored"),
        ("GET", "/v1/responses/resp_1/input_items", "not stored"),
        ("GET", "/v1/chat/completions/chatcmpl_1", "not stored"),
    ],
)
async def test_unsupported_path_names_the_supported_one(method: str, path: str, instead: str) -> None:
    async with client() as gateway:
        answer = await gateway.request(method, path, json={"model": "acme/bot"} if method == "POST" else None)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (404, "not_found") and instead in error["message"]
