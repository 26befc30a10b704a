"""POST /tokenize and /detokenize."""

import httpx

from functions.engines.client import EngineClient
from tests.contract.servers import MAX_MODEL_LEN, MODEL
from tests.contract.shapes import Each, Matching, assert_shape, error_body
from tests.contract.talk import chat, completion

TEXT = "Hello wörld, 日本語!"


async def test_text_becomes_tokens_and_text_again(http: httpx.AsyncClient) -> None:
    answer = (await http.post("/tokenize", json={"model": MODEL, "prompt": TEXT})).json()
    assert_shape(answer, {"count": int, "max_model_len": MAX_MODEL_LEN, "tokens": Each(int), "token_strs": None})
    assert answer["count"] == len(answer["tokens"])
    back = await http.post("/detokenize", json={"model": MODEL, "tokens": answer["tokens"]})
    assert back.json() == {"prompt": TEXT}


async def test_the_spelling_of_tokens_on_request(http: httpx.AsyncClient) -> None:
    answer = (await http.post("/tokenize", json={"prompt": TEXT, "return_token_strs": True})).json()
    assert_shape(answer["token_strs"], Each(str))
    assert len(answer["token_strs"]) == answer["count"]


async def test_a_conversation_counts_as_its_template_makes_it(http: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "messages": chat()["messages"]}
    with_generation = (await http.post("/tokenize", json=body)).json()["count"]
    without = (await http.post("/tokenize", json=body | {"add_generation_prompt": False})).json()["count"]
    assert without < with_generation
    usage = (await http.post("/v1/chat/completions", json=chat(max_tokens=1))).json()["usage"]
    assert usage["prompt_tokens"] == with_generation


async def test_a_plain_prompt_counts_as_completions_count_it(http: httpx.AsyncClient, client: EngineClient) -> None:
    usage = (await http.post("/v1/completions", json=completion(TEXT))).json()["usage"]
    assert usage["prompt_tokens"] == len(await client.tokenize(MODEL, TEXT))


async def test_empty_prompt_has_no_tokens(http: httpx.AsyncClient) -> None:
    assert (await http.post("/tokenize", json={"prompt": ""})).json()["tokens"] == []
    assert (await http.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}


async def test_neither_prompt_nor_messages(http: httpx.AsyncClient) -> None:
    answer = await http.post("/tokenize", json={"model": MODEL})
    words = r"2 validation errors:.*'body\.prompt'.*Field required.*'body\.messages'.*Field required.*"
    assert_shape(answer.json(), error_body("Bad Request", words, code=400, param="body.prompt"))


async def test_tokens_that_are_no_list(http: httpx.AsyncClient) -> None:
    answer = await http.post("/detokenize", json={"tokens": "x"})
    assert_shape(answer.json(), error_body("Bad Request", r".*valid list.*", code=400, param="body.tokens"))
    assert_shape(answer.json()["error"]["param"], Matching("body.tokens"))
