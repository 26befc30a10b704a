"""The client's errors: every way an engine can fail has one name."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from functions.api.snapshot import Task
from functions.engines.client import EngineClient
from functions.engines.errors import EngineError, EngineGarbled, EngineHung, EngineRefused, EngineUnreachable
from functions.engines.metrics import MAX_PAGE_BYTES
from tests.engines.servers import answering

Answer = Callable[[httpx.Request], Any]


def always(status: int = 200, **content: Any) -> Answer:
    return lambda request: httpx.Response(status, **content)


def failing(error: type[Exception]) -> Answer:
    def answer(request: httpx.Request) -> httpx.Response:
        raise error("broken")

    return answer


async def silent(request: httpx.Request) -> httpx.Response:
    await asyncio.Event().wait()
    raise AssertionError


class Trickle(httpx.AsyncByteStream):
    """Endless bytes without a pause that a read timeout would notice."""

    async def __aiter__(self) -> Any:
        while True:
            await asyncio.sleep(0)
            yield b"."


async def outcome(answer: Answer, call: Callable[[EngineClient], Any], timeout_s: float = 30.0) -> EngineError | None:
    async with answering(answer) as http:
        try:
            await call(EngineClient(http, "http://engine", timeout_s=timeout_s, load_timeout_s=timeout_s))
        except EngineError as error:
            return error
    return None


@pytest.mark.parametrize("error", [httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError])
async def test_a_broken_connection_is_unreachable(error: type[Exception]) -> None:
    assert isinstance(await outcome(failing(error), EngineClient.health), EngineUnreachable)


@pytest.mark.parametrize("answer", [silent, failing(httpx.ReadTimeout), always(stream=Trickle())])
async def test_silence_and_trickling_are_hanging(answer: Answer) -> None:
    for call in (EngineClient.health, EngineClient.metrics, lambda client: client.load_adapter("a", "/a")):
        error = await outcome(answer, call, timeout_s=0.05)
        assert isinstance(error, EngineHung) and error.timeout_s == 0.05


async def test_a_probe_has_a_deadline_of_its_own() -> None:
    error = await outcome(silent, lambda client: client.probe("m", timeout_s=0.01))
    assert isinstance(error, EngineHung) and error.timeout_s == 0.01


@pytest.mark.parametrize(("status", "retryable"), [(400, False), (404, False), (429, True), (500, False), (503, True)])
async def test_a_refusal_carries_status_message_and_whether_to_come_back(status: int, retryable: bool) -> None:
    body = {"error": {"message": "no room", "type": "x", "param": None, "code": status}}
    error = await outcome(always(status, json=body), EngineClient.models)
    assert isinstance(error, EngineRefused)
    assert (error.status, error.message, error.retryable) == (status, "no room", retryable)


async def test_a_refusal_that_is_no_json_keeps_the_beginning_of_its_text() -> None:
    error = await outcome(always(502, text="<html>" + "x" * 9999), EngineClient.health)
    assert isinstance(error, EngineRefused)
    assert error.message.startswith("<html>") and len(error.message) == 500


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b"{}", b'{"data":3}', b'{"data":[{"id":"x"}]}', b"\xff"])
async def test_nonsense_with_status_200_is_garbled(content: bytes) -> None:
    for call in (EngineClient.models, EngineClient.metrics, lambda client: client.tokenize("m", "x")):
        assert isinstance(await outcome(always(content=content), call), EngineGarbled)


async def test_a_completion_without_choices_is_garbled() -> None:
    error = await outcome(always(json={"choices": []}), lambda client: client.probe("m", timeout_s=1))
    assert isinstance(error, EngineGarbled)


@pytest.mark.parametrize(
    ("task", "path", "answered_with"),
    [
        ("generate", "/v1/completions", "choices"),
        ("embed", "/v1/embeddings", "data"),
        ("classify", "/classify", "data"),
        ("score", "/score", "data"),
    ],
)
async def test_a_probe_asks_for_what_the_model_is_for(task: Task, path: str, answered_with: str) -> None:
    """An engine has only the routes of its model's task."""

    def engine(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200 if request.url.path == path else 404, json={answered_with: [{}]})

    assert await outcome(engine, lambda client: client.probe("m", 1, task)) is None
    empty = always(json={answered_with: []})
    assert isinstance(await outcome(empty, lambda client: client.probe("m", 1, task)), EngineGarbled)


async def test_an_answer_without_end_is_cut_off() -> None:
    error = await outcome(always(content=b"x" * (MAX_PAGE_BYTES + 1)), EngineClient.models)
    assert isinstance(error, EngineGarbled)


async def test_adapters_are_never_loaded_in_place() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, text="Success")

    assert await outcome(answer, lambda client: client.load_adapter("t/a@1", "/adapters/1")) is None
    assert seen[0].url.path == "/v1/load_lora_adapter"
    assert seen[0].content == b'{"lora_name":"t/a@1","lora_path":"/adapters/1"}'
