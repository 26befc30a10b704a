"""Routes that generate nothing."""

import httpx
import pytest

from tests.contract.servers import MAX_MODEL_LEN, MODEL, Engine
from tests.contract.shapes import Each, Matching, assert_shape

CARD = {
    "id": str,
    "object": "model",
    "created": int,
    "owned_by": "vllm",
    "root": str,
    "parent": None,
    "max_model_len": MAX_MODEL_LEN,
    "permission": [
        {
            "id": Matching(r"modelperm-[0-9a-f]{16}"),
            "object": "model_permission",
            "created": int,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
    ],
}


@pytest.mark.parametrize(("method", "path"), [("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")])
async def test_health_is_an_empty_200(http: httpx.AsyncClient, method: str, path: str) -> None:
    answer = await http.request(method, path)
    assert (answer.status_code, answer.content) == (200, b"")


async def test_version_and_load_and_event_sources(http: httpx.AsyncClient) -> None:
    assert (await http.get("/version")).content == b'{"version":"0.32.0"}'
    assert (await http.get("/load")).content == b'{"server_load":0}'
    assert (await http.get("/kv_event_sources")).content == b"{}"


async def test_models_lists_the_base_model_first(http: httpx.AsyncClient, engine: Engine) -> None:
    answer = (await http.get("/v1/models")).json()
    assert_shape({**answer, "data": answer["data"][:1]}, {"object": "list", "data": Each(CARD)})
    assert (answer["data"][0]["id"], answer["data"][0]["root"]) == (MODEL, engine.model_dir)


async def test_unknown_paths_and_methods_answer_as_fastapi_does(http: httpx.AsyncClient) -> None:
    missing = await http.get("/v1/models/nothing")
    assert (missing.status_code, missing.content) == (404, b'{"detail":"Not Found"}')
    wrong = await http.get("/v1/chat/completions")
    assert (wrong.status_code, wrong.content) == (405, b'{"detail":"Method Not Allowed"}')
    assert wrong.headers["allow"] == "POST"


async def test_request_id_is_echoed_or_made(http: httpx.AsyncClient) -> None:
    echoed = await http.get("/health", headers={"X-Request-Id": "mine"})
    assert echoed.headers["x-request-id"] == "mine"
    made = await http.get("/health")
    assert_shape(made.headers["x-request-id"], Matching(r"[0-9a-f]{32}"))
