"""The simulated server on a real socket, in this process: behaviour that only bytes on a wire can show.

Its clock advances only by sleeping, so runs take no time. Ends of the process (signals, os._exit) are in test_process.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engines.servers import serving

pytestmark = pytest.mark.servers
CHAT = "/v1/chat/completions"
LONG = {"max_tokens": 5000, "ignore_eos": True, "stream": True}


def chat(content: str = "one two three four five six", **changes: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]} | changes


async def raw(port: int, body: dict[str, Any]) -> bytes:
    """Return every byte that the server sends until it closes the connection or the test times out."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    try:
        return await reader.read(-1)
    finally:
        writer.close()


async def streamed(http: httpx.AsyncClient, body: dict[str, Any]) -> str:
    return (await http.post(CHAT, json=body | {"stream": True})).text


def spoken(events: str) -> str:
    chunks = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"]["content"] for chunk in chunks for choice in chunk["choices"])


async def test_every_stream_receives_its_own_echo() -> None:
    async with serving() as (_, http, _):
        texts = [f"stream {index} says ünïcode {index * 7}" for index in range(40)]
        heard = await asyncio.gather(*(streamed(http, chat(text)) for text in texts))
    assert [spoken(events) for events in heard] == texts


@pytest.mark.parametrize(
    ("path", "body"),
    [(CHAT, chat(model="\ud800")), ("/v1/completions", {"prompt": "a", "model": "\ud800"})],
)
async def test_a_name_that_is_no_text_is_refused_in_words(path: str, body: dict[str, Any]) -> None:
    """JSON can contain half a surrogate pair; an answer in UTF-8 cannot."""
    async with serving() as (_, http, _):
        answer = await http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code == 404 and answer.json()["error"]["message"], answer.text


async def test_a_client_that_leaves_frees_its_blocks_at_once() -> None:
    async with serving() as (parts, http, _):
        async with http.stream("POST", CHAT, json=chat(**LONG)) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            assert parts.engine.core.scheduler.unfinished_seqs == 1
        async with asyncio.timeout(60):
            while parts.engine.core.has_work:
                await asyncio.sleep(0.01)
        assert parts.engine.core.scheduler.blocks.usage_ratio == 0


@pytest.mark.parametrize(
    ("kind", "proof"),
    [
        ("no_blank_line", lambda body: b"\n\n" not in body),
        ("crlf", lambda body: b"}\r\n\r\n\r\n" in body and b"}\n\n" not in body),
        ("huge_line", lambda body: len(max(body.split(b"\n"), key=len)) > 2_000_000),
        ("non_json", lambda body: b"[oops\n\n" in body),
        ("html_body", lambda body: b"200 OK" in body and b"<html>" in body and b"data:" not in body),
        ("truncated_chunk", lambda body: b"[DONE]" not in body and not body.endswith(b"0\r\n\r\n")),
        ("wrong_content_length", lambda body: b"content-length: 1000000" in body and len(body) < 2000),
    ],
)
async def test_malformed_streams(kind: str, proof: Any) -> None:
    async with serving("--sim-malformed", kind) as (_, _, port):
        body = await raw(port, chat(stream=True))
    assert proof(body), body[:400]


async def test_a_split_character_comes_together_again() -> None:
    body = chat("日本語 éé", stream=True)
    async with (
        serving("--sim-malformed", "split_utf8") as (_, http, _),
        http.stream("POST", CHAT, json=body) as answer,
    ):
        parts = [part async for part in answer.aiter_raw()]
    assert any(_is_cut(part) for part in parts), "a part ends inside a character"
    assert spoken(b"".join(parts).decode()) == "日本語 éé"


def _is_cut(part: bytes) -> bool:
    try:
        part.decode()
    except UnicodeDecodeError:
        return True
    return False


async def test_an_error_for_a_share_of_requests_says_when_to_come_back() -> None:
    async with serving() as (_, http, _):
        changed = await http.post("/sim/faults", json={"error_status": 503, "retry_after_s": 2, "ratio": 0.5})
        assert changed.json()["ratio"] == 0.5
        answers = [await http.post(CHAT, json=chat(max_tokens=1)) for _ in range(40)]
    failed = [answer for answer in answers if answer.status_code == 503]
    assert 5 < len(failed) < 35
    assert {answer.headers["retry-after"] for answer in failed} == {"2"}


async def test_requests_for_one_model_begin_later() -> None:
    async with serving() as (parts, http, _):
        took_s = []
        for model in ("another", ""):
            await http.post("/sim/faults", json={"model": model, "delay_s": 30})
            began_s = parts.clock.now_s()
            assert (await http.post(CHAT, json=chat(max_tokens=1))).status_code == 200
            took_s.append(parts.clock.now_s() - began_s)
    assert took_s[0] < 30 <= took_s[1]


async def test_a_wrong_switch_is_refused_and_shown_unchanged() -> None:
    async with serving() as (_, http, _):
        assert (await http.post("/sim/faults", json={"no_such": True})).status_code == 400
        shown = (await http.get("/sim/faults")).json()
    assert (shown["hang"], shown["malformed"], shown["ratio"]) == (False, None, 1.0)


async def test_a_reset_after_some_tokens_breaks_the_stream() -> None:
    async with serving("--sim-faults", '{"reset_after_tokens": 3}') as (_, http, _):
        with pytest.raises(httpx.TransportError):
            await streamed(http, chat())
        assert (await http.get("/health")).status_code == 200


async def test_a_stalled_stream_stays_open_and_silent() -> None:
    received: list[str] = []
    async with (
        serving("--sim-faults", '{"stall_after_tokens": 2}') as (_, http, _),
        http.stream("POST", CHAT, json=chat(stream=True)) as answer,
    ):
        lines = answer.aiter_lines()
        while spoken("\n".join(received)) != "one two":
            received.append(await anext(lines))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                while True:
                    received.append(await anext(lines))
    assert spoken("\n".join(received)) == "one two" and "data: [DONE]" not in received


async def test_hanging_holds_even_health_and_control_still_works() -> None:
    async with serving() as (_, http, _):
        await http.post("/sim/faults", json={"hang": True})
        with pytest.raises(httpx.ReadTimeout):
            await http.get("/health", timeout=httpx.Timeout(30, read=0.2))
        await http.post("/sim/faults", json={"hang": False})
        assert (await http.get("/health")).status_code == 200


async def test_a_frozen_engine_looks_healthy_and_answers_nothing() -> None:
    async with serving() as (_, http, _):
        await http.post("/sim/faults", json={"freeze": True})
        assert (await http.get("/health")).status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            await http.post(CHAT, json=chat(max_tokens=1), timeout=httpx.Timeout(30, read=0.2))
        await http.post("/sim/faults", json={"freeze": False})
        assert (await http.post(CHAT, json=chat(max_tokens=1))).status_code == 200


async def test_a_closed_listener_opens_again_at_the_same_port() -> None:
    async with serving() as (_, http, _):
        await http.post("/sim/faults", json={"refuse_s": 2.0})
        async with asyncio.timeout(60):
            while await _answers(http):
                await asyncio.sleep(0.02)
            while not await _answers(http):
                await asyncio.sleep(0.02)


async def _answers(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/health")).status_code == 200
    except httpx.TransportError:
        return False


async def test_a_dead_engine_ends_streams_with_an_error_event_and_fails_its_health() -> None:
    async with serving() as (parts, http, _):
        async with http.stream("POST", CHAT, json=chat(**LONG)) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            parts.faults.merge({"engine_dead": True})
            rest = [line async for line in lines if line]
        assert (await http.get("/health")).status_code == 503
        refused = await http.post(CHAT, json=chat())
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["error"]["type"] == "InternalServerError"
    assert (refused.status_code, refused.json()["error"]["code"]) == (500, 500)


async def test_without_the_environment_there_are_no_adapter_routes() -> None:
    body = {"lora_name": "a", "lora_path": "/a"}
    async with serving("--enable-lora") as (_, http, _):
        assert (await http.post("/v1/load_lora_adapter", json=body)).status_code == 404
    async with serving("--enable-lora", VLLM_ALLOW_RUNTIME_LORA_UPDATING="True") as (_, http, _):
        assert (await http.post("/v1/load_lora_adapter", json=body)).json()["error"]["type"] == "NotFoundError"


async def test_finished_answer_is_logged_once_and_an_abandoned_one_not(tmp_path: Path) -> None:
    log = tmp_path / "usage"
    async with serving("--sim-usage-log", str(log)) as (parts, http, _):
        usage = (await http.post(CHAT, json=chat(), headers={"x-request-id": "whole"})).json()["usage"]
        await http.post(CHAT, json=chat(stream=True), headers={"x-request-id": "stream"})
        async with http.stream("POST", CHAT, json=chat(**LONG), headers={"x-request-id": "left"}) as answer:
            await anext(answer.aiter_lines())
        async with asyncio.timeout(60):
            while parts.engine.core.has_work:
                await asyncio.sleep(0.01)
    prompt_tokens, completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
    lines = [line.split() for line in log.read_text().splitlines()]
    assert [line[0] for line in lines] == ["whole", "stream"]
    assert all((int(line[1]), int(line[3])) == (prompt_tokens, completion_tokens) for line in lines)
