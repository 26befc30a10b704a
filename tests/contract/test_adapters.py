"""Loading, using and unloading LoRA adapters while the engine runs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from functions.engines.metrics import EngineMetrics, parse_metrics
from tests.contract.servers import MODEL
from tests.contract.shapes import assert_shape, error_body
from tests.contract.talk import chat, stream

LOAD = "/v1/load_lora_adapter"
UNLOAD = "/v1/unload_lora_adapter"
CHAT = "/v1/chat/completions"
Dirs = dict[str, Path]
ENDLESS = {"max_tokens": 900, "ignore_eos": True, "stream": True}


async def load(http: httpx.AsyncClient, name: str, path: Path | str) -> httpx.Response:
    return await http.post(LOAD, json={"lora_name": name, "lora_path": str(path)})


@pytest.fixture
async def loaded(http: httpx.AsyncClient, adapter_dirs: Dirs) -> AsyncIterator[str]:
    name = "acme/bot@v1"
    answer = await load(http, name, adapter_dirs["a"])
    assert answer.status_code == 200, answer.text
    yield name
    await http.post(UNLOAD, json={"lora_name": name})


async def test_loading_answers_in_plain_text(http: httpx.AsyncClient, adapter_dirs: Dirs) -> None:
    answer = await load(http, "acme/plain@v1", adapter_dirs["a"])
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'acme/plain@v1' added successfully.")
    assert "content-type" not in answer.headers
    gone = await http.post(UNLOAD, json={"lora_name": "acme/plain@v1"})
    assert (gone.status_code, gone.text) == (200, "Success: LoRA adapter 'acme/plain@v1' removed successfully.")


async def test_models_shows_the_adapter_with_its_base(http: httpx.AsyncClient, adapter_dirs: Dirs, loaded: str) -> None:
    card = (await http.get("/v1/models")).json()["data"][-1]
    shown = {key: card[key] for key in ("id", "root", "parent", "max_model_len", "owned_by")}
    root = str(adapter_dirs["a"])
    assert shown == {"id": loaded, "root": root, "parent": MODEL, "max_model_len": None, "owned_by": "vllm"}


async def test_two_adapters_and_the_base_answer_differently(
    http: httpx.AsyncClient, adapter_dirs: Dirs, loaded: str
) -> None:
    await load(http, "b", adapter_dirs["b"])
    texts = {}
    for model in (MODEL, loaded, "b"):
        answer = (await http.post(CHAT, json=chat(model=model, max_tokens=8))).json()
        assert answer["model"] == model
        texts[model] = answer["choices"][0]["message"]["content"]
        chunks = await stream(http, CHAT, chat(model=model, max_tokens=2))
        assert {item["model"] for item in chunks} == {model}
    await http.post(UNLOAD, json={"lora_name": "b"})
    assert len(set(texts.values())) == 3, texts


async def test_an_unloaded_name_is_unknown_again(http: httpx.AsyncClient, adapter_dirs: Dirs) -> None:
    await load(http, "brief", adapter_dirs["b"])
    await http.post(UNLOAD, json={"lora_name": "brief"})
    answer = await http.post(CHAT, json=chat(model="brief"))
    assert_shape(answer.json(), error_body("NotFoundError", r"The model `brief` .*", code=404, param="model"))


async def test_a_stream_outlives_the_unloading_of_its_adapter(http: httpx.AsyncClient, adapter_dirs: Dirs) -> None:
    await load(http, "leaving", adapter_dirs["a"])
    body = chat(model="leaving", max_tokens=30, ignore_eos=True, stream=True)
    async with http.stream("POST", CHAT, json=body) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        assert (await http.post(UNLOAD, json={"lora_name": "leaving"})).status_code == 200
        rest = [line async for line in lines if line]
    assert rest[-1] == "data: [DONE]" and '"finish_reason":"length"' in rest[-2]


async def test_the_same_name_twice_is_refused(http: httpx.AsyncClient, adapter_dirs: Dirs, loaded: str) -> None:
    answer = await load(http, loaded, adapter_dirs["b"])
    words = rf"The lora adapter '{loaded}' has already been loaded\. .*'load_inplace' to True\."
    assert answer.status_code == 400
    assert_shape(answer.json(), error_body("InvalidUserInput", words, code=400))


@pytest.mark.parametrize(
    ("body", "status", "error_type", "param", "words"),
    [
        ({"lora_name": MODEL, "lora_path": "/x"}, 400, "InvalidUserInput", None, r".*conflicts with a served base.*"),
        ({"lora_name": "", "lora_path": "/x"}, 400, "InvalidUserInput", None, r"Both 'lora_name' and 'lora_path' .*"),
        ({"lora_name": "z"}, 400, "Bad Request", "body.lora_path", r"1 validation error:.*Field required.*"),
        (
            {"lora_name": "z", "lora_path": "/tmp/shoal/no-such-dir"},
            404,
            "NotFoundError",
            None,
            r"Loading lora z failed: No adapter found for <path>",
        ),
    ],
)
async def test_a_load_call_that_makes_no_sense(
    http: httpx.AsyncClient, body: dict[str, Any], status: int, error_type: str, param: str | None, words: str
) -> None:
    answer = await http.post(LOAD, json=body)
    assert answer.status_code == status
    assert_shape(answer.json(), error_body(error_type, words, code=status, param=param))


@pytest.mark.parametrize(
    ("which", "status", "error_type", "words"),
    [
        ("empty", 404, "NotFoundError", r"Loading lora z failed: No adapter found for .*"),
        ("no weights", 500, "InternalServerError", r".*Worker failed with error '.* doesn't contain tensors', .*"),
        ("rank 64", 500, "InternalServerError", r".*'LoRA rank 64 is greater than max_lora_rank 16\.', .*"),
        ("dora", 500, "InternalServerError", r".*'vLLM does not yet support DoRA\.', .*"),
    ],
)
async def test_broken_adapter_is_refused_and_engine_keeps_serving(
    http: httpx.AsyncClient, adapter_dirs: Dirs, which: str, status: int, error_type: str, words: str
) -> None:
    answer = await load(http, "z", adapter_dirs[which])
    assert answer.status_code == status
    assert_shape(answer.json(), error_body(error_type, words, code=status))
    assert (await http.post(CHAT, json=chat(max_tokens=1))).status_code == 200


async def test_unloading_unknown_adapter_is_refused(http: httpx.AsyncClient) -> None:
    answer = await http.post(UNLOAD, json={"lora_name": "never"})
    assert_shape(answer.json(), error_body("NotFoundError", r"The lora adapter 'never' cannot be found\.", code=404))
    nameless = await http.post(UNLOAD, json={"lora_name": ""})
    assert_shape(nameless.json(), error_body("InvalidUserInput", r"'lora_name' needs to be provided .*", code=400))


async def test_an_adapter_beyond_max_loras_waits_as_deferred(http: httpx.AsyncClient, adapter_dirs: Dirs) -> None:
    """The server runs with --max-loras 1: while one adapter runs, a request for another one waits."""
    await load(http, "first", adapter_dirs["a"])
    await load(http, "second", adapter_dirs["b"])
    async with asyncio.TaskGroup() as tasks:
        async with http.stream("POST", CHAT, json=chat(model="first", **ENDLESS)) as first:
            lines = first.aiter_lines()
            await anext(lines)
            second = tasks.create_task(http.post(CHAT, json=chat(model="second", max_tokens=1)))
            page = await _until(http, lambda metrics: metrics.waiting_deferred == 1)
        assert (page.running, page.waiting) == (1, 1)
    assert second.result().status_code == 200
    for name in ("first", "second"):
        await http.post(UNLOAD, json={"lora_name": name})


async def _until(http: httpx.AsyncClient, holds: Callable[[EngineMetrics], bool]) -> EngineMetrics:
    async with asyncio.timeout(60):
        while not holds(metrics := parse_metrics((await http.get("/metrics")).text)):
            await asyncio.sleep(0.02)
        return metrics
