"""Results of a health check, against a real simulated engine with faults switched on."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from functions.engines.client import EngineClient
from functions.replica import monitor
from functions.replica.monitor import EngineProber
from tests.ports import free_ports
from tests.replica.processes import POOL, Engine, http, wait_for

pytestmark = pytest.mark.servers
_NO_FAULTS = {"hang": False, "freeze": False, "reset_connections": False, "error_status": None}


@pytest.fixture(scope="module")
def shared_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with Engine(tmp_path_factory.mktemp("engine")).run() as running:
        wait_for(lambda: http("GET", f"{running.url}/health")[0] == 200, "the engine answers")
        yield running


@pytest.fixture
def well_engine(shared_engine: Engine) -> Iterator[Engine]:
    yield shared_engine
    shared_engine.fault(**_NO_FAULTS)


@pytest.fixture
async def http_client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False) as opened:
        yield opened


def client_of(engine: Engine, http_client: httpx.AsyncClient, timeout_s: float = 60.0) -> EngineClient:
    return EngineClient(http_client, engine.url, timeout_s=timeout_s)


async def test_check_of_a_healthy_engine(well_engine: Engine, http_client: httpx.AsyncClient) -> None:
    look = await monitor.poll_engine(client_of(well_engine, http_client))
    assert look.health == "ok"
    assert look.metrics is not None
    load = monitor.load_of(look.metrics, None)
    assert (load.outstanding, load.decode_tokens_per_s) == (0, 0.0)
    assert load.kv_blocks_total > 0


async def test_a_hung_engine_times_out(well_engine: Engine, http_client: httpx.AsyncClient) -> None:
    well_engine.fault(hang=True)
    assert await monitor.poll_engine(client_of(well_engine, http_client, 1.0)) == monitor.EnginePoll("timed_out", None)


async def test_both_check_requests_run_at_once(
    http_client: httpx.AsyncClient,
) -> None:
    both = asyncio.Barrier(2)

    async def answer_once_both_are_asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await both.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(answer_once_both_are_asked, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert (await monitor.poll_engine(EngineClient(http_client, url, timeout_s=60.0))).health == "ok"
        await http_client.aclose()


async def test_check_without_a_server_is_refused(http_client: httpx.AsyncClient) -> None:
    nowhere = EngineClient(http_client, f"http://127.0.0.1:{free_ports(1)[0]}", timeout_s=60.0)
    assert await monitor.poll_engine(nowhere) == monitor.EnginePoll("refused", None)


@pytest.mark.parametrize(
    ("fault", "state", "words"),
    [
        ({}, "answered", ""),
        ({"error_status": 503}, "busy", "503"),
        ({"error_status": 429}, "busy", "429"),
        ({"error_status": 500}, "failed", "500"),
        ({"error_status": 404}, "failed", "404"),
        ({"freeze": True}, "timed_out", "no answer within"),
        ({"reset_connections": True}, "failed", "/v1/completions"),
    ],
)
async def test_how_a_probe_ends(
    well_engine: Engine, http_client: httpx.AsyncClient, fault: dict[str, Any], state: str, words: str
) -> None:
    well_engine.fault(**fault)
    timeout_s = 1.0 if state == "timed_out" else 60.0
    prober = EngineProber(client_of(well_engine, http_client), POOL, timeout_s, time.monotonic)
    prober.mark_pending()
    assert prober.newest.state == "pending"
    await prober.run()
    assert prober.newest.state == state
    assert words in prober.newest.detail
    assert prober.newest.ended_s > prober.newest.started_s
    assert prober.answered == (state == "answered")


async def test_own_probes_do_not_change_rates(well_engine: Engine, http_client: httpx.AsyncClient) -> None:
    engine = client_of(well_engine, http_client)
    prober = EngineProber(engine, POOL, 60.0, time.monotonic)
    before = monitor.rate_counters_of(await engine.metrics(), prober)
    for _ in range(3):
        prober.mark_pending()
        await prober.run()
    after = monitor.rate_counters_of(await engine.metrics(), prober)
    assert after.finished == before.finished
    assert after.e2e_s <= before.e2e_s


async def test_decode_speed_is_per_stream(well_engine: Engine, http_client: httpx.AsyncClient) -> None:
    engine = client_of(well_engine, http_client)
    before = await engine.metrics()
    body = {"model": POOL, "prompt": "go on", "max_tokens": 20, "ignore_eos": True}
    assert (await http_client.post(f"{well_engine.url}/v1/completions", json=body, timeout=60)).status_code == 200
    load = monitor.load_of(await engine.metrics(), before)
    assert 1 < load.decode_tokens_per_s < 200  # 8.1 ms a step if the machine is fast enough
