"""Every field that OpenAI or vLLM documents, sent once to an engine with loaded adapters: it is answered or refused,
and other requests are answered as well.

Unpatched vLLM 0.32 on a CPU with adapters crashes on two of them (functions/engines/vllm_patches).
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.servers import MODEL, Engine
from tests.contract.talk import chat, completion

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ADAPTER, HEADED = "acme/fields@v1", "acme/headed@v1"
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
BOTH: list[dict[str, Any]] = [
    {"frequency_penalty": 0.5}, {"presence_penalty": 0.5}, {"repetition_penalty": 1.1}, {"logit_bias": {"5": 1.0}},
    {"n": 3, "temperature": 1}, {"seed": 7}, {"stop": ["."]}, {"temperature": 0.7}, {"top_p": 0.5}, {"top_k": 5},
    {"min_p": 0.1}, {"user": "u"}, {"min_tokens": 2}, {"max_tokens": 1}, {"ignore_eos": True}, {"stop_token_ids": [5]},
    {"include_stop_str_in_output": True}, {"skip_special_tokens": False}, {"spaces_between_special_tokens": False},
    {"truncate_prompt_tokens": 5}, {"truncation_side": "left"}, {"allowed_token_ids": [5, 6, 7]},
    {"bad_words": ["Paris"]}, {"length_penalty": 0.5}, {"use_beam_search": True}, {"watermarking": False},
    {"prompt_logprobs": 0}, {"prompt_logprobs": 3}, {"logprob_token_ids": [5, 6]}, {"add_special_tokens": True},
    {"response_format": {"type": "json_object"}}, {"structured_outputs": {"choice": ["yes", "no"]}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
    {"structured_outputs": {"regex": "[ab]+"}}, {"structured_outputs": {"grammar": 'root ::= "yes" | "no"'}},
    {"priority": 1}, {"session_id": "s"}, {"return_tokens_as_token_ids": True}, {"return_token_ids": True},
    {"return_token_offsets": True}, {"cache_salt": "salt"}, {"thinking_token_budget": 5},
    {"repetition_detection": {"max_pattern_size": 4, "min_pattern_size": 1, "min_count": 3}},
    {"stream": True, "stream_interval": 2}, {"stream": True, "stream_options": {"continuous_usage_stats": True}},
]  # fmt: skip
OF_COMPLETIONS: list[dict[str, Any]] = [
    {"echo": True}, {"echo": True, "logprobs": 1}, {"echo": True, "logprobs": 1, "max_tokens": 0}, {"logprobs": 5},
    {"suffix": "end"}, {"prompt_embeds": "AAAA"}, {"best_of": 2}, {"prompt": [[1, 2, 3], [4, 5]]},
]  # fmt: skip
OF_CHAT: list[dict[str, Any]] = [
    {"logprobs": True, "top_logprobs": 3}, {"echo": True}, {"echo": True, "logprobs": True}, {"tools": [WEATHER]},
    {"tools": [WEATHER], "tool_choice": "none"}, {"tools": [WEATHER], "tool_choice": "required"},
    {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
    {"parallel_tool_calls": False}, {"reasoning_effort": "low"}, {"include_reasoning": False},
    {"max_completion_tokens": 2}, {"add_generation_prompt": False}, {"documents": [{"title": "t", "text": "x"}]},
    {"continue_final_message": True, "add_generation_prompt": False}, {"chat_template_kwargs": {"x": 1}},
    {"mm_processor_kwargs": {}}, {"return_prompt_text": True}, {"service_tier": "default"}, {"store": False},
    {"metadata": {"a": "b"}}, {"modalities": ["text"]}, {"verbosity": "low"},
]  # fmt: skip
REQUESTS = [
    *((CHAT, fields) for fields in (*BOTH, *OF_CHAT)),
    *((COMPLETIONS, fields) for fields in (*BOTH, *OF_COMPLETIONS)),
]
AT_ONCE = 5  # concurrent requests, with two plain ones in addition
LONG = pytest.mark.timeout(1800)  # time to start the real engine and to answer a hundred requests
SLOW_S = 300.0  # an engine may compile on the first use of a field


@pytest.fixture
async def adapters(http: httpx.AsyncClient, adapter_dirs: dict[str, Path]) -> AsyncIterator[tuple[str, ...]]:
    names = {ADAPTER: adapter_dirs["a"], HEADED: adapter_dirs["head"]}
    for name, path in names.items():
        loaded = await http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path)})
        assert loaded.status_code == 200, loaded.text
    yield tuple(names)
    for name in names:
        await http.post("/v1/unload_lora_adapter", json={"lora_name": name})


async def asked(http: httpx.AsyncClient, path: str, model: str, fields: dict[str, Any]) -> httpx.Response:
    """Send a request, and again while the engine's queue is full: some requests are several sequences."""
    body = (chat if path == CHAT else completion)(model=model, **fields)
    while True:
        answer = await http.post(path, json=body, timeout=SLOW_S)
        if answer.status_code != 503:
            return answer
        await asyncio.sleep(0.1)  # let running requests end


@LONG
async def test_no_documented_field_crashes_the_engine(http: httpx.AsyncClient, adapters: tuple[str, ...]) -> None:
    """Requests run in groups for base and adapter in turn; plain requests run with each group and must succeed."""
    models = itertools.cycle((MODEL, ADAPTER))
    for start in range(0, len(REQUESTS), AT_ONCE):
        some = REQUESTS[start : start + AT_ONCE]
        answers = await asyncio.gather(
            *(asked(http, COMPLETIONS, model, {}) for model in (MODEL, ADAPTER)),
            *(asked(http, path, next(models), fields) for path, fields in some),
            return_exceptions=True,
        )
        told = [answer.status_code if isinstance(answer, httpx.Response) else repr(answer) for answer in answers]
        assert told[:2] == [200, 200] and set(told) <= {200, 400}, (some, told)
    assert (await http.get("/health")).status_code == 200


@LONG
async def test_a_prompt_is_scored_as_it_was_generated(
    http: httpx.AsyncClient, engine: Engine, adapters: tuple[str, ...]
) -> None:
    """Requests of all models share engine steps; each token must be scored with its own request's adapter."""
    if engine.kind == "sim":
        pytest.skip("the simulated engine has no logits to compare")
    models = (MODEL, *adapters, MODEL)
    generated = await asyncio.gather(*(_generated(http, model) for model in models))
    scored = await asyncio.gather(*(_scored(http, model, *made) for model, made in zip(models, generated, strict=True)))
    for model, (_, expected), found in zip(models, generated, scored, strict=True):
        assert found == pytest.approx(expected, abs=0.05), model
    assert len({tuple(round(value, 2) for value in found) for found in scored}) == len(set(models)), "each its own"


async def _generated(http: httpx.AsyncClient, model: str) -> tuple[list[int], list[float]]:
    """Return the ids of prompt and answer, and the log probabilities of the answer's tokens at generation."""
    fields = {"logprobs": 0, "max_tokens": 6, "return_token_ids": True, "ignore_eos": True}
    choice = (await asked(http, COMPLETIONS, model, fields)).json()["choices"][0]
    return [*choice["prompt_token_ids"], *choice["token_ids"]], choice["logprobs"]["token_logprobs"]


async def _scored(http: httpx.AsyncClient, model: str, ids: list[int], made: list[float]) -> list[float]:
    """Return the log probabilities of the same tokens as the end of a prompt."""
    fields = {"prompt": ids, "echo": True, "logprobs": 0, "max_tokens": 1}
    told = (await asked(http, COMPLETIONS, model, fields)).json()["choices"][0]["logprobs"]["token_logprobs"]
    return list(told[len(ids) - len(made) : len(ids)])
