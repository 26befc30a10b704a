"""The simulated engine as a process: how it starts, stops and dies."""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.roles import RoleProcess, start

pytestmark = [pytest.mark.servers, pytest.mark.timeout(120)]
CHAT = "/v1/chat/completions"


@asynccontextmanager
async def process(tmp_path: Path, *flags: str) -> AsyncIterator[tuple[RoleProcess, httpx.AsyncClient]]:
    log = tmp_path / "engine.log"
    with log.open("wb") as output:
        started = start("functions.engines.sim", "--model", "sim", "--port", "0", *flags, stdout=output, stderr=output)
    try:
        port = await _port(log, started)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            yield started, http
    finally:
        started.kill()
        started.wait()


async def _port(log: Path, started: RoleProcess) -> int:
    async with asyncio.timeout(90):
        while "listening on" not in (text := log.read_text()):
            assert started.poll() is None, text
            await asyncio.sleep(0.05)
    return int(text.split("listening on ")[1].split()[0].rpartition(":")[2])


async def wait_until_ended(started: RoleProcess, *, within_s: float = 60) -> int:
    async with asyncio.timeout(within_s):
        while (status := started.poll()) is None:
            await asyncio.sleep(0.02)
    return status


def chat(**changes: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "one two three"}]} | changes


async def test_a_drain_lets_streams_finish_and_refuses_new_text(tmp_path: Path) -> None:
    flags = ("--shutdown-timeout", "100", "--sim-faults", '{"slow_factor": 100}')  # 50 s, until it is fast again
    async with process(tmp_path, *flags) as (started, http):
        body = chat(max_tokens=60, ignore_eos=True, stream=True)
        async with http.stream("POST", CHAT, json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            started.send_signal(signal.SIGTERM)
            refused = await _until_draining(http)
            by_ids = await http.post("/v1/completions", json={"prompt": [300], "max_tokens": 2})
            health = await http.get("/health")
            await http.post("/sim/faults", json={"slow_factor": 1.0})
            rest = [line async for line in lines if line]
        assert await wait_until_ended(started) == 0
    assert rest[-1] == "data: [DONE]" and '"finish_reason":"length"' in rest[-2]
    assert (refused.status_code, refused.json()["error"]["type"]) == (500, "InternalServerError")
    assert (by_ids.status_code, by_ids.json()["choices"][0]["finish_reason"]) == (200, "abort")
    assert by_ids.json()["usage"]["completion_tokens"] == 0
    assert health.status_code == 200, "health says nothing of a drain: deregister first"


async def _until_draining(http: httpx.AsyncClient) -> httpx.Response:
    async with asyncio.timeout(60):
        while (answer := await http.post(CHAT, json=chat(max_tokens=1))).status_code == 200:
            await asyncio.sleep(0.02)
        return answer


async def test_without_a_drain_open_streams_fall_silent_until_their_clients_leave(tmp_path: Path) -> None:
    async with process(tmp_path) as (started, http):
        body = json.dumps(chat(max_tokens=4000, ignore_eos=True, stream=True)).encode()
        reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode())
        writer.write(f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await reader.readuntil(b"data: ")
        started.send_signal(signal.SIGTERM)
        await _until_nobody_listens(http)
        with pytest.raises(TimeoutError):
            while await asyncio.wait_for(reader.read(65536), timeout=2.0):
                """What was on its way."""
        assert started.poll() is None, "silent, and open"
        writer.close()
        assert await wait_until_ended(started) == 0


async def _until_nobody_listens(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(60):
        with pytest.raises(httpx.ConnectError):
            while True:
                with contextlib.suppress(httpx.ReadError, httpx.RemoteProtocolError):  # accepted, then closed
                    await http.get("/health")
                await asyncio.sleep(0.02)


async def test_an_idle_engine_stops_at_once(tmp_path: Path) -> None:
    async with process(tmp_path) as (started, http):
        assert (await http.get("/health")).status_code == 200
        await http.aclose()
        started.send_signal(signal.SIGTERM)
        assert await wait_until_ended(started) == 0


async def test_death_before_the_first_token_breaks_the_connection(tmp_path: Path) -> None:
    async with process(tmp_path, "--sim-faults", '{"die_after_tokens": 0}') as (started, http):
        with pytest.raises(httpx.TransportError):
            await http.post(CHAT, json=chat(stream=True))
        assert await wait_until_ended(started) == 1


async def test_a_dead_engine_takes_its_process_with_it(tmp_path: Path) -> None:
    async with process(tmp_path) as (started, http):
        await http.post("/sim/faults", json={"engine_dead": True})
        await wait_until_ended(started)


async def test_an_evicted_adapter_whose_files_are_gone_kills_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text('{"r": 4, "lora_alpha": 8, "target_modules": []}')
        (tmp_path / name / "adapter_model.safetensors").write_bytes(b"")
    async with process(tmp_path, "--enable-lora", "--max-loras", "1") as (started, http):
        for name in ("a", "b"):
            body = {"lora_name": name, "lora_path": str(tmp_path / name)}
            assert (await http.post("/v1/load_lora_adapter", json=body)).status_code == 200
        (tmp_path / "a").rename(tmp_path / "gone")
        answer = await http.post(CHAT, json=chat(model="a"))
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "InternalServerError")
        await wait_until_ended(started)


async def test_during_the_start_up_delay_connections_wait(tmp_path: Path) -> None:
    async with process(tmp_path, "--sim-startup-delay-s", "8") as (_, http):
        with pytest.raises(httpx.ReadTimeout):
            await http.get("/health", timeout=httpx.Timeout(30, read=0.3))
        assert (await http.get("/health")).status_code == 200
