"""Requests that vLLM refuses, with status, type, param and message. A validation error is always 400, never 422."""

import json
from typing import Any

import httpx
import pytest

from tests.contract.servers import MAX_MODEL_LEN, MODEL
from tests.contract.shapes import assert_shape, error_body
from tests.contract.talk import chat, completion

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
TOO_LONG = r"This model's maximum context length is 1024 tokens\. However, your prompt contains {} input tokens, .*"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
async def test_an_unknown_model_is_404_and_names_the_known_ones(http: httpx.AsyncClient, path: str) -> None:
    body = {"model": "no/such", "messages": chat()["messages"], "prompt": "x", "tokens": [1]}
    answer = await http.post(path, json=body)
    assert answer.status_code == 404
    message = rf"The model `no/such` does not exist\. Valid aliases: {MODEL}\."
    assert_shape(answer.json(), error_body("NotFoundError", message, code=404, param="model"))


@pytest.mark.parametrize(
    ("content", "param", "words"),
    [
        (b'{"model": ', "body.10", "json_invalid.*JSON decode error"),
        (b"not json", "body.0", "json_invalid.*JSON decode error"),
        (b"", "body", "missing.*Field required"),
        (b"[]", "body", "valid dictionary or object"),
        (b'{"model":"m"}', "body.messages", "missing.*'body.messages'.*Field required"),
        (b'{"messages":"hi"}', "body.messages", "list_type.*Input should be a valid list.*'input': 'hi'"),
        (b'{"messages":[],"temperature":"x"}', "body.temperature", "float_parsing.*unable to parse string"),
        (b'{"messages":[],"seed":1180591620717411303424}', "body.seed", "less_than_equal"),
        (b'{"messages":[],"stop":["a","b","c","d","e"]}', "body.stop", "at most 4 items"),
    ],
)
async def test_a_body_that_is_no_request(http: httpx.AsyncClient, content: bytes, param: str, words: str) -> None:
    answer = await http.post(CHAT, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert_shape(
        answer.json(), error_body("Bad Request", rf"\d+ validation errors?:\n.*{words}.*", code=400, param=param)
    )


async def test_a_message_whose_content_is_a_number(http: httpx.AsyncClient) -> None:
    answer = await http.post(CHAT, json=chat(messages=[{"role": "user", "content": 3}]))
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (400, "Bad Request", 400)
    assert error["param"].startswith("body.messages.0.") and error["param"].endswith("content")


@pytest.mark.parametrize("headers", [{"content-type": "text/plain"}, {}])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/v1/load_lora_adapter"])
async def test_only_json_is_accepted(http: httpx.AsyncClient, path: str, headers: dict[str, str]) -> None:
    answer = await http.post(path, content=b"{}", headers=headers)
    assert answer.status_code == 400
    words = r"1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    assert_shape(answer.json(), error_body("Bad Request", words, code=400))


async def test_a_charset_beside_the_media_type_is_fine(http: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    answer = await http.post(CHAT, content=json.dumps(chat(max_tokens=1)), headers=headers)
    assert answer.status_code == 200


async def test_bytes_that_are_no_text(http: httpx.AsyncClient) -> None:
    answer = await http.post(CHAT, content=b'{"model":"\xff"}', headers={"content-type": "application/json"})
    assert (answer.status_code, answer.content) == (400, b'{"detail":"There was an error parsing the body"}')


@pytest.mark.parametrize(
    ("changes", "param", "words"),
    [
        (
            {"temperature": 3},
            "temperature",
            r"temperature must be in \[0, 2\], got 3\.0\. \(parameter=.*, value=3\.0\)",
        ),
        ({"temperature": -1}, "temperature", r"temperature must be non-negative, got -1\.0\..*"),
        ({"top_p": 0}, "top_p", r"top_p must be in \(0, 1\], got 0\.0\..*"),
        ({"n": 0}, None, r"n must be at least 1, got 0\."),
        ({"n": 2}, None, r"n must be 1 when using greedy sampling, got 2\."),
        ({"max_tokens": 0}, "max_tokens", r"max_tokens must be at least 1, got 0\. \(parameter=max_tokens, value=0\)"),
        ({"max_tokens": -1}, "max_tokens", r"max_tokens must be at least 1, got -1\..*"),
        (
            {"max_tokens": 5000},
            "max_tokens",
            rf"max_tokens=5000 cannot be greater than max_model_len={MAX_MODEL_LEN}\. Please request fewer output "
            r"tokens\. \(parameter=max_tokens, value=5000\)",
        ),
        ({"max_completion_tokens": 5000}, "max_completion_tokens", r"max_completion_tokens=5000 cannot be greater.*"),
        ({"stop": [""]}, None, r"stop cannot contain an empty string\."),
        ({"top_logprobs": 2}, "top_logprobs", r"when using `top_logprobs`, `logprobs` must be set to true\..*"),
        (
            {"stream_options": {"include_usage": True}},
            "stream_options",
            r"Stream options can only be defined when `stream=True`\. \(parameter=stream_options\)",
        ),
        ({"cache_salt": ""}, "cache_salt", r"Parameter 'cache_salt' must be a non-empty string if provided\..*"),
        ({"cache_salt": "a/b"}, "cache_salt", r"Parameter 'cache_salt' must be at most 128 characters and must not.*"),
        ({"response_format": {"type": "json_schema"}}, "response_format", r"When response_format type is .*"),
        ({"messages": []}, None, r"Cannot apply chat template to an empty conversation\. .*"),
        ({"tools": TOOLS}, None, r'"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser .*'),
        ({"tools": TOOLS, "tool_choice": "required"}, None, r'tool_choice="required" requires --tool-call-parser .*'),
        ({"tools": []}, "tools", r"`tools` must not be an empty array\. .*"),
        ({"tool_choice": "auto"}, "tool_choice", r"When using `tool_choice`, `tools` must be set\. .*"),
    ],
)
async def test_a_chat_request_that_makes_no_sense(
    http: httpx.AsyncClient, changes: dict[str, Any], param: str | None, words: str
) -> None:
    for streamed in ({}, {"stream": True} if "stream_options" not in changes else {}):
        answer = await http.post(CHAT, json=chat(**changes, **streamed))
        assert answer.status_code == 400, answer.text
        assert answer.headers["content-type"] == "application/json"
        assert_shape(answer.json(), error_body("BadRequestError", words, code=400, param=param))


async def test_engine_error_is_400_or_the_only_event_of_a_stream(http: httpx.AsyncClient) -> None:
    words = r"Requested sample logprobs of 30, which is greater than max allowed: 20 \(parameter=logprobs, value=30\)"
    expected = error_body("BadRequestError", words, code=400, param="logprobs")
    asked = chat(logprobs=True, top_logprobs=30)
    whole = await http.post(CHAT, json=asked)
    assert whole.status_code == 400
    assert_shape(whole.json(), expected)
    streamed = await http.post(CHAT, json=asked | {"stream": True})
    assert streamed.status_code == 200
    event, done, end = streamed.text.split("\n\n")
    assert_shape(json.loads(event.removeprefix("data: ")), expected)
    assert (done, end) == ("data: [DONE]", "")


@pytest.mark.parametrize(
    ("changes", "param", "words"),
    [
        ({"prompt": ""}, "prompt", r"Either prompt or prompt_embeds must be provided and non-empty\. .*"),
        ({"prompt": []}, None, r"You must pass at least one prompt"),
        ({"prompt": [2**60]}, None, rf"Token id {2**60} is out of vocabulary"),
        ({"max_tokens": 0}, "max_tokens", r"max_tokens must be at least 1, got 0\..*"),
        ({"logprobs": 30}, "logprobs", r"Requested sample logprobs of 30, .*"),
    ],
)
async def test_a_completion_request_that_makes_no_sense(
    http: httpx.AsyncClient, changes: dict[str, Any], param: str | None, words: str
) -> None:
    answer = await http.post(COMPLETIONS, json=completion(**changes))
    assert answer.status_code == 400
    assert_shape(answer.json(), error_body("BadRequestError", words, code=400, param=param))


async def test_a_negative_token_id(http: httpx.AsyncClient) -> None:
    error = (await http.post(COMPLETIONS, json=completion([-1]))).json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("Bad Request", "body.prompt.0", 400)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_prompt_longer_than_the_context(http: httpx.AsyncClient, streamed: bool) -> None:
    answer = await http.post(CHAT, json=chat("word " * 1500, stream=streamed))
    words = TOO_LONG.format("at least 1025") + r" \(parameter=input_tokens, value=1025\)"
    assert answer.status_code == 400
    assert_shape(answer.json(), error_body("BadRequestError", words, code=400, param="input_tokens"))


async def test_token_ids_longer_than_the_context_are_counted_exactly(http: httpx.AsyncClient) -> None:
    one = (await http.post("/tokenize", json={"prompt": "a"})).json()["tokens"]
    answer = await http.post(COMPLETIONS, json=completion(one * 1100))
    words = TOO_LONG.format("1100")
    assert_shape(answer.json(), error_body("BadRequestError", words, code=400, param="input_tokens"))


async def test_a_text_too_long_to_tokenise(http: httpx.AsyncClient) -> None:
    answer = await http.post(CHAT, json=chat("w" * 200_000))
    words = r"This model's maximum context length is 1024 tokens\. However, your prompt contains \d+ characters .*"
    assert_shape(answer.json(), error_body("BadRequestError", words, code=400, param="input_text"))


async def test_an_output_that_does_not_fit_behind_the_prompt_is_shortened_silently(http: httpx.AsyncClient) -> None:
    one = (await http.post("/tokenize", json={"prompt": "a"})).json()["tokens"]
    body = completion(one * (MAX_MODEL_LEN - 3), max_tokens=10, ignore_eos=True)
    answer = (await http.post(COMPLETIONS, json=body)).json()
    assert answer["usage"]["total_tokens"] == MAX_MODEL_LEN
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (3, "length")


async def test_a_prompt_that_fills_the_context_leaves_no_room(http: httpx.AsyncClient) -> None:
    one = (await http.post("/tokenize", json={"prompt": "a"})).json()["tokens"]
    answer = await http.post(COMPLETIONS, json=completion(one * MAX_MODEL_LEN))
    words = r"max_tokens must be at least 1, got 0\..*"
    assert_shape(answer.json(), error_body("BadRequestError", words, code=400, param="max_tokens"))
