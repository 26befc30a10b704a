"""POST /v1/completions, unstreamed and streamed."""

from typing import Any

import httpx

from tests.contract.servers import MODEL
from tests.contract.shapes import Each, Matching, assert_shape
from tests.contract.talk import completion, stream, text_of

PATH = "/v1/completions"
FINGERPRINT = Matching(r"vllm-0\.32\.0-[0-9a-f]{8}")
NAME = Matching(r"cmpl-[0-9a-f]{16}")


def choice(index: int = 0, *, finish: Any = "length", stop_reason: Any = None, logprobs: Any = None) -> Any:
    return {
        "index": index,
        "text": str,
        "logprobs": logprobs,
        "finish_reason": finish,
        "stop_reason": stop_reason,
        "token_ids": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "routed_experts": None,
    }


def whole(choices: list[Any], prompt: Any, total: Any, generated: Any) -> Any:
    details = {"cached_tokens": int, "created_cache_tokens": None, "multimodal_tokens": None}
    usage = {"prompt_tokens": prompt, "total_tokens": total, "completion_tokens": generated}
    return {
        "id": NAME,
        "object": "text_completion",
        "created": int,
        "model": MODEL,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": usage | {"prompt_tokens_details": details, "completion_tokens_details": None},
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def streamed(index: int = 0, *, finish: Any = None) -> Any:
    ending = {"finish_reason": finish, "stop_reason": None, "prompt_token_ids": None, "token_ids": None}
    return {"index": index, "text": str, "logprobs": None, **ending}


def chunk(choices: list[Any], **extra: Any) -> Any:
    return {"id": NAME, "object": "text_completion", "created": int, "model": MODEL, "choices": choices, **extra}


async def count(http: httpx.AsyncClient, prompt: str) -> int:
    return int((await http.post("/tokenize", json={"prompt": prompt})).json()["count"])


async def test_a_whole_answer(http: httpx.AsyncClient) -> None:
    prompt = await count(http, completion()["prompt"])
    answer = (await http.post(PATH, json=completion())).json()
    assert_shape(answer, whole([choice()], prompt, prompt + 2, 2))
    assert answer["choices"][0]["text"].startswith(" Paris")


async def test_a_stream_has_no_opening_chunk(http: httpx.AsyncClient) -> None:
    chunks = await stream(http, PATH, completion())
    last = chunk([streamed(finish="length")], system_fingerprint=FINGERPRINT)
    assert_shape(chunks, [chunk([streamed()]), last])
    assert text_of(chunks) == (await http.post(PATH, json=completion())).json()["choices"][0]["text"]


async def test_stream_usage_says_what_was_cached_and_not_what_was_created(http: httpx.AsyncClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await stream(http, PATH, completion(stream_options=options))
    prompt = await count(http, completion()["prompt"])
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + 2, "completion_tokens": 2}
    first = {"prompt_tokens": prompt, "total_tokens": prompt + 1, "completion_tokens": 1}
    closing = usage | {"prompt_tokens_details": {"cached_tokens": int}}
    assert_shape(
        chunks,
        [
            chunk([streamed()], usage=first),
            chunk([streamed(finish="length")], usage=usage),
            chunk([], usage=closing, system_fingerprint=FINGERPRINT),
        ],
    )


async def test_echo_repeats_the_prompt(http: httpx.AsyncClient) -> None:
    answer = (await http.post(PATH, json=completion(echo=True))).json()
    assert answer["choices"][0]["text"].startswith(completion()["prompt"] + " Paris")
    assert answer["usage"]["completion_tokens"] == 2
    chunks = await stream(http, PATH, completion(echo=True))
    assert text_of(chunks) == answer["choices"][0]["text"]
    assert len(chunks[0]["choices"][0]["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]


async def test_echo_alone_still_costs_one_token(http: httpx.AsyncClient) -> None:
    answer = (await http.post(PATH, json=completion(echo=True, max_tokens=0))).json()
    assert answer["choices"][0]["text"] == completion()["prompt"]
    assert answer["usage"]["completion_tokens"] == 1


async def test_several_prompts_are_several_choices(http: httpx.AsyncClient) -> None:
    answer = (await http.post(PATH, json=completion(["one two", "three"], max_tokens=1))).json()
    prompt = await count(http, "one two") + await count(http, "three")
    assert_shape(answer, whole([choice(0), choice(1)], prompt, prompt + 2, 2))
    chunks = await stream(http, PATH, completion(["one two", "three"], max_tokens=1))
    assert sorted(item["choices"][0]["index"] for item in chunks) == [0, 1]


async def test_prompts_of_token_ids(http: httpx.AsyncClient) -> None:
    ids = (await http.post("/tokenize", json={"prompt": completion()["prompt"]})).json()["tokens"]
    by_ids = (await http.post(PATH, json=completion(ids))).json()
    by_text = (await http.post(PATH, json=completion())).json()
    assert by_ids["choices"][0]["text"] == by_text["choices"][0]["text"]
    assert by_ids["usage"]["prompt_tokens"] == len(ids)
    answer = (await http.post(PATH, json=completion([ids, ids], max_tokens=1))).json()
    assert answer["usage"]["prompt_tokens"] == 2 * len(ids)


async def test_token_ids_are_returned_when_asked_for(http: httpx.AsyncClient) -> None:
    answer = (await http.post(PATH, json=completion(return_token_ids=True))).json()["choices"][0]
    chunks = await stream(http, PATH, completion(return_token_ids=True))
    assert [token for item in chunks for token in item["choices"][0]["token_ids"]] == answer["token_ids"]
    assert chunks[0]["choices"][0]["prompt_token_ids"] == answer["prompt_token_ids"]
    assert chunks[1]["choices"][0]["prompt_token_ids"] is None


async def test_max_tokens_is_16_when_not_given(http: httpx.AsyncClient) -> None:
    answer = (await http.post(PATH, json=completion(max_tokens=None, ignore_eos=True))).json()
    assert answer["usage"]["completion_tokens"] == 16


async def test_logprobs_count_characters(http: httpx.AsyncClient) -> None:
    answer = (await http.post(PATH, json=completion(logprobs=2))).json()["choices"][0]
    scored = {"text_offset": [0, int], "token_logprobs": [float, float], "tokens": [str, str], "top_logprobs": list}
    assert_shape(answer["logprobs"], scored)
    assert answer["logprobs"]["text_offset"][1] == len(answer["logprobs"]["tokens"][0])
    assert [len(top) for top in answer["logprobs"]["top_logprobs"]] == [2, 2]
    chunks = await stream(http, PATH, completion(logprobs=2))
    offsets = [item["choices"][0]["logprobs"]["text_offset"] for item in chunks]
    assert offsets == [[0], [answer["logprobs"]["text_offset"][1]]]


async def test_the_first_token_of_an_echoed_prompt_has_no_probability(http: httpx.AsyncClient) -> None:
    answer = (await http.post(PATH, json=completion(echo=True, logprobs=1))).json()
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert_shape(logprobs["token_logprobs"][1:], Each(float))
    assert len(logprobs["tokens"]) == answer["usage"]["total_tokens"]
