"""POST /v1/chat/completions, unstreamed and streamed: every key, in order."""

from typing import Any

import httpx
import pytest

from tests.contract.servers import MODEL
from tests.contract.shapes import Each, Matching, assert_shape
from tests.contract.talk import FRANCE, chat, stream, text_of

PATH = "/v1/chat/completions"
NAME = Matching(r"chatcmpl-[0-9a-f]{16}")
FINGERPRINT = Matching(r"vllm-0\.32\.0-[0-9a-f]{8}")
TOKEN = {"token": str, "logprob": float, "bytes": Each(int)}


def whole(choices: list[Any], usage: tuple[int, int]) -> Any:
    prompt, completion = usage
    return {
        "id": NAME,
        "object": "chat.completion",
        "created": int,
        "model": MODEL,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": {"cached_tokens": int, "created_cache_tokens": int, "multimodal_tokens": None},
            "completion_tokens_details": None,
        },
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def choice(index: int = 0, *, finish: Any = "length", stop_reason: Any = None, logprobs: Any = None) -> Any:
    message = {"role": "assistant", "content": str, "refusal": None, "annotations": None, "audio": None}
    return {
        "index": index,
        "message": message | {"function_call": None, "reasoning": None},
        "logprobs": logprobs,
        "finish_reason": finish,
        "stop_reason": stop_reason,
        "token_ids": None,
        "routed_experts": None,
    }


def chunk(choices: list[Any], **extra: Any) -> Any:
    return {"id": NAME, "object": "chat.completion.chunk", "created": int, "model": MODEL, "choices": choices, **extra}


def opening(index: int = 0) -> Any:
    return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}


def token(index: int = 0) -> Any:
    delta = {"content": str}
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, "token_ids": None}


def last(index: int = 0, *, finish: str = "length", stop_reason: Any = None) -> Any:
    return {
        "index": index,
        "delta": {"content": str},
        "logprobs": None,
        "finish_reason": finish,
        "stop_reason": stop_reason,
        "token_ids": None,
    }


async def prompt_tokens(http: httpx.AsyncClient, content: str = FRANCE) -> int:
    body = {"model": MODEL, "messages": chat(content)["messages"]}
    return int((await http.post("/tokenize", json=body)).json()["count"])


async def test_a_whole_answer(http: httpx.AsyncClient) -> None:
    answer = await http.post(PATH, json=chat(max_tokens=4))
    assert answer.headers["content-type"] == "application/json"
    assert_shape(answer.json(), whole([choice()], (await prompt_tokens(http), 4)))
    assert b": " not in answer.content.split(b'"choices"')[0]


async def test_the_capital_of_france_is_paris_and_the_end_token_counts(http: httpx.AsyncClient) -> None:
    answer = (await http.post(PATH, json=chat(max_tokens=40))).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    text = answer["choices"][0]["message"]["content"]
    assert "Paris" in text
    spoken = (await http.post("/tokenize", json={"prompt": text, "add_special_tokens": False})).json()["count"]
    assert answer["usage"]["completion_tokens"] == spoken + 1


async def test_ids_come_from_the_header_then_the_body(http: httpx.AsyncClient) -> None:
    body = chat(max_tokens=1, request_id="in-the-body")
    assert (await http.post(PATH, json=body)).json()["id"] == "chatcmpl-in-the-body"
    answer = await http.post(PATH, json=body, headers={"X-Request-Id": "in-the-header"})
    assert answer.json()["id"] == "chatcmpl-in-the-header"


async def test_a_stream_opens_with_the_role_and_closes_with_the_fingerprint(http: httpx.AsyncClient) -> None:
    chunks = await stream(http, PATH, chat(max_tokens=3))
    opened = {"prompt_token_ids": None, "prompt_text": None}
    shape = [chunk([opening()], **opened), chunk([token()]), chunk([token()])]
    assert_shape(chunks, [*shape, chunk([last()], system_fingerprint=FINGERPRINT)])
    assert len({(item["id"], item["created"]) for item in chunks}) == 1


async def test_a_stream_that_ends_by_itself_ends_with_an_empty_delta(http: httpx.AsyncClient) -> None:
    chunks = await stream(http, PATH, chat(max_tokens=40))
    assert_shape(chunks[-1], chunk([last(finish="stop")], system_fingerprint=FINGERPRINT))
    assert chunks[-1]["choices"][0]["delta"] == {"content": ""}
    answer = (await http.post(PATH, json=chat(max_tokens=40))).json()
    assert text_of(chunks) == answer["choices"][0]["message"]["content"]


async def test_usage_comes_in_a_chunk_of_its_own(http: httpx.AsyncClient) -> None:
    chunks = await stream(http, PATH, chat(max_tokens=2, stream_options={"include_usage": True}))
    prompt = await prompt_tokens(http)
    details = {"cached_tokens": int, "created_cache_tokens": int}
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + 2, "completion_tokens": 2}
    assert_shape(chunks[-2], chunk([last()]))
    closing = chunk([], usage=usage | {"prompt_tokens_details": details}, system_fingerprint=FINGERPRINT)
    assert_shape(chunks[-1], closing)


async def test_continuous_usage_counts_every_token(http: httpx.AsyncClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await stream(http, PATH, chat(max_tokens=2, stream_options=options))
    prompt = await prompt_tokens(http)
    for tokens, item in enumerate(chunks[:-1]):
        usage = {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}
        assert item["usage"] == usage | {"completion_tokens_details": None}
    assert list(chunks[0])[-3:] == ["usage", "prompt_token_ids", "prompt_text"]


async def test_token_ids_are_returned_when_asked_for(http: httpx.AsyncClient) -> None:
    answer = (await http.post(PATH, json=chat(max_tokens=2, return_token_ids=True))).json()
    assert len(answer["choices"][0]["token_ids"]) == 2
    assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
    chunks = await stream(http, PATH, chat(max_tokens=2, return_token_ids=True))
    assert chunks[0]["prompt_token_ids"] == answer["prompt_token_ids"]
    streamed = [token for item in chunks[1:] for token in item["choices"][0]["token_ids"]]
    assert streamed == answer["choices"][0]["token_ids"]


async def test_two_replies_have_two_indexes_and_one_prompt(http: httpx.AsyncClient) -> None:
    asked = chat(max_tokens=2, n=2, temperature=1, seed=7)
    answer = (await http.post(PATH, json=asked)).json()
    assert_shape(answer, whole([choice(0), choice(1)], (await prompt_tokens(http), 4)))
    chunks = await stream(http, PATH, asked)
    assert_shape([item["choices"] for item in chunks[:2]], [[opening(0)], [opening(1)]])
    for index in (0, 1):
        mine = [item["choices"][0] for item in chunks if item["choices"][0]["index"] == index]
        assert_shape(mine, [opening(index), token(index), last(index)])


async def test_a_stop_string_is_cut_off_and_named(http: httpx.AsyncClient) -> None:
    answer = (await http.post(PATH, json=chat(max_tokens=40, stop=["of"]))).json()
    assert answer["choices"][0]["message"]["content"] == "The capital "
    assert (answer["choices"][0]["finish_reason"], answer["choices"][0]["stop_reason"]) == ("stop", "of")
    kept = await http.post(PATH, json=chat(max_tokens=40, stop="of", include_stop_str_in_output=True))
    assert kept.json()["choices"][0]["message"]["content"] == "The capital of"


async def test_a_stream_never_sends_a_part_of_a_stop_string(http: httpx.AsyncClient) -> None:
    chunks = await stream(http, PATH, chat(max_tokens=40, stop=["France"]))
    assert text_of(chunks) == "The capital of "
    assert_shape(chunks[-1], chunk([last(finish="stop", stop_reason="France")], system_fingerprint=FINGERPRINT))
    assert chunks[1]["choices"][0]["delta"] == {"content": ""}, "held back while it could be a stop string"


async def test_ignore_eos_goes_on_to_the_length(http: httpx.AsyncClient) -> None:
    answer = (await http.post(PATH, json=chat(max_tokens=20, ignore_eos=True))).json()
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (20, "length")


@pytest.mark.parametrize("top", [0, 2])
async def test_logprobs(http: httpx.AsyncClient, top: int) -> None:
    answer = (await http.post(PATH, json=chat(max_tokens=2, logprobs=True, top_logprobs=top))).json()
    scored = TOKEN | {"top_logprobs": [TOKEN] * top}
    assert_shape(answer["choices"][0]["logprobs"], {"content": [scored, scored]})
    first = answer["choices"][0]["logprobs"]["content"][0]
    assert bytes(first["bytes"]).decode() == first["token"]
    assert first["logprob"] <= 0
    chunks = await stream(http, PATH, chat(max_tokens=2, logprobs=True, top_logprobs=top))
    streamed = [item["choices"][0]["logprobs"]["content"] for item in chunks[1:]]
    assert [len(item) for item in streamed] == [1, 1]
    assert_shape(streamed, Each(Each(scored)))


async def test_content_parts_max_completion_tokens_and_extras_are_accepted(http: httpx.AsyncClient) -> None:
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]
    body = chat(messages=[{"role": "user", "content": parts}], max_tokens=None, max_completion_tokens=2)
    extras = {"priority": 3, "cache_salt": "abc", "unheard_of": 1, "response_format": {"type": "text"}}
    answer = (await http.post(PATH, json=body | extras)).json()
    assert answer["usage"]["completion_tokens"] <= 2


async def test_a_model_may_be_left_out(http: httpx.AsyncClient) -> None:
    body = {key: value for key, value in chat(max_tokens=1).items() if key != "model"}
    assert (await http.post(PATH, json=body)).json()["model"] == MODEL


async def test_a_prompt_seen_before_is_cached_for_the_same_salt_only(http: httpx.AsyncClient) -> None:
    async def cached(**changes: Any) -> int:
        body = chat("fish " * 300 + "!", max_tokens=1, **changes)
        usage = (await http.post(PATH, json=body)).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    await cached(cache_salt="tenant-a")
    hit = await cached(cache_salt="tenant-a")
    assert hit >= 256 and hit % 128 == 0
    assert await cached(cache_salt="tenant-b") == 0
