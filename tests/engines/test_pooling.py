"""The simulated pooling models: vectors with meaning, and routes in vLLM's shapes."""

import base64
import math
import struct
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.engines.sim import pooling
from functions.engines.sim.settings import read_settings
from functions.engines.sim.tokenizer import BuiltinTokenizer
from tests.engines.test_server import serving

TOKENIZER = BuiltinTokenizer()
DIMENSIONS = 64


def vector(text: str, mark: str | None = None) -> list[float]:
    return pooling.embed(TOKENIZER.encode(text, add_special_tokens=True), dimensions=DIMENSIONS, mark=mark)


def test_shared_words_bring_vectors_together() -> None:
    query = vector("the cat sat on the mat")
    assert pooling.cosine(query, vector("a cat sat on a mat")) > pooling.cosine(query, vector("stocks fell today"))
    assert math.isclose(pooling.cosine(query, query), 1.0)


def test_adapter_changes_every_vector() -> None:
    assert vector("hello") != vector("hello", "a") != vector("hello", "b")


def test_a_cross_encoder_scores_what_both_have() -> None:
    assert pooling.overlap([1, 2, 3], [1, 2, 3]) == 1.0
    assert pooling.overlap([1, 2], [3]) == 0.0
    assert pooling.overlap([], []) == 0.0
    assert 0.0 < pooling.overlap([1, 2], [2, 3]) < 1.0


@given(st.lists(st.integers(0, 1 << 48), max_size=50), st.integers(1, 130))
def test_vectors_have_length_one(ids: list[int], dimensions: int) -> None:
    found = pooling.embed(ids, dimensions=dimensions)
    assert len(found) == dimensions and math.isclose(math.fsum(value * value for value in found), 1.0)


@given(st.lists(st.integers(0, 1000), max_size=20))
def test_classes_are_probabilities(ids: list[int]) -> None:
    probs = pooling.classify(ids)
    assert len(probs) == len(pooling.LABELS) and math.isclose(sum(probs), 1.0) and min(probs) >= 0.0


def test_a_model_generates_unless_it_is_told_to_pool() -> None:
    assert read_settings([], {}).task == "generate"
    assert read_settings(["--runner", "pooling"], {}).task == "embed"
    assert read_settings(["--runner", "pooling", "--sim-task", "score"], {}).task == "score"


async def posted(http: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.servers
async def test_an_embedding_engine() -> None:
    async with serving("--runner", "pooling", "--sim-embedding-dimensions", "32") as (parts, http, _):
        whole = await posted(http, "/v1/embeddings", input=["a cat", "a dog", "a cat"])
        one, other, again = (item["embedding"] for item in whole["data"])
        assert one == again != other and len(one) == 32
        assert whole["usage"]["prompt_tokens"] == whole["usage"]["total_tokens"] == 6
        encoded = (await posted(http, "/v1/embeddings", input="a cat", encoding_format="base64"))["data"][0]
        assert struct.unpack("<32f", base64.b64decode(encoded["embedding"])) == pytest.approx(one, abs=1e-6)
        ids = (await posted(http, "/tokenize", model="sim", prompt="a cat"))["tokens"]
        assert (await posted(http, "/v1/embeddings", input=ids))["data"][0]["embedding"] == one
        short = (await posted(http, "/v1/embeddings", input="a cat", dimensions=8))["data"][0]["embedding"]
        assert len(short) == 8 and math.isclose(sum(value * value for value in short), 1.0)
        ranked = await posted(http, "/rerank", query="cat food", documents=["stocks", "food for a cat", "cat"], top_n=2)
        assert [item["index"] for item in ranked["results"]] == [2, 1] or ranked["results"][0]["index"] in (1, 2)
        assert ranked["results"][0]["relevance_score"] >= ranked["results"][1]["relevance_score"]
        scored = await posted(http, "/score", queries="cat", documents=["cat", "stocks"])
        assert [item["score"] > 0.9 for item in scored["data"]] == [True, False]
        assert parts.engine.core.stats.prompt_tokens > 0, "what is read is scheduled"
        for path in ("/v1/chat/completions", "/v1/responses", "/classify"):
            assert (await http.post(path, json={"messages": [], "input": "x"})).status_code == 404
        assert (await http.post("/v1/embeddings", json={"input": "x", "dimensions": 99})).status_code == 400
        assert (await http.post("/v1/embeddings", json={"input": "x " * 20_000})).status_code == 400
        assert (await http.post("/v1/embeddings", json={"model": "nope", "input": "x"})).status_code == 404
        cut = await posted(http, "/v1/embeddings", input="x " * 20_000, truncate_prompt_tokens=5)
        assert cut["usage"]["prompt_tokens"] == 5


@pytest.mark.servers
async def test_a_classifier_and_a_cross_encoder() -> None:
    async with serving("--runner", "pooling", "--sim-task", "classify") as (_, http, _port):
        found = (await posted(http, "/classify", input=["a", "b"]))["data"]
        assert [item["num_classes"] for item in found] == [2, 2]
        assert found[0]["label"] == pooling.LABELS[found[0]["probs"].index(max(found[0]["probs"]))]
        assert (await http.post("/v1/embeddings", json={"input": "x"})).status_code == 404
    async with serving("--runner", "pooling", "--sim-task", "score") as (_, http, _port):
        pairs = await posted(http, "/score", text_1=["a b", "c d"], text_2=["a b", "x y"])
        assert [item["score"] for item in pairs["data"]] == [1.0, 0.0]
        uneven = await http.post("/score", json={"text_1": ["a", "b"], "text_2": ["a", "b", "c"]})
        assert uneven.status_code == 400
