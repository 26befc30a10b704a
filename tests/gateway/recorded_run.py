"""A gateway process on simulated engines that writes its request traces.

Engines are small, so that requests wait and some are rejected. Their heartbeats have what an agent would read from
them.
"""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import httpx

from functions.api.ids import TenantId
from functions.api.snapshot import AdmissionEntry, BandEntry, TenantEntry
from functions.engines.client import EngineClient
from functions.engines.errors import EngineError
from functions.fleet.bus import BusUnavailable
from functions.fleet.valkey_bus import ValkeyBus
from tests.gateway.processes import GatewayProcess, exited
from tests.gateway.rig import ACME_KEY, BATCH_KEY, GLOBEX_KEY, POOL, heartbeat
from tests.ports import free_port

REPLICAS = 3
BLOCKS = 96  # blocks of 16 tokens
_FLAGS = (
    *(
        "--model",
        POOL,
        "--max-num-seqs",
        "8",
        "--max-num-batched-tokens",
        "512",
        "--num-gpu-blocks-override",
        str(BLOCKS),
    ),
    *("--max-model-len", "1024", "--sim-step-ms", "20", "--enable-prompt-tokens-details"),
)
SHORT = AdmissionEntry(  # short queue, so that some requests are rejected
    name="short",
    pools=("*",),
    bands=(
        BandEntry("interactive", 0.6, ttft_slo_ms=400),
        BandEntry("near-real-time", 0.3),
        BandEntry("batch", 0.1),
    ),
)
SECTIONS: dict[str, Any] = {
    "tenants": (
        TenantEntry(TenantId("acme"), "enterprise", ("acme/*", POOL)),
        TenantEntry(TenantId("globex"), "free", ("globex/*", POOL), cache_salt="shared"),
    ),
    "admission": (SHORT,),
}


class TracedGateway(GatewayProcess):
    @property
    def traces(self) -> Path:
        return self.folder / "traces"


async def record(gateway: TracedGateway, requests: int) -> list[int]:
    """Send the requests and return their statuses. On return the gateway has ended and written all traces."""
    async with engines(gateway.folder) as ports, beats(gateway.bus_url, ports):
        with gateway.start() as process:
            await gateway.ready()
            statuses = await send_requests(gateway.plain_port, requests, ports)
            process.send_signal(signal.SIGTERM)
            assert await exited(process) == 0, gateway.log()
    return statuses


@contextlib.asynccontextmanager
async def engines(folder: Path) -> AsyncIterator[list[int]]:
    ports = [free_port() for _ in range(REPLICAS)]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((folder / "engines.log").open("ab"))
        for port in ports:
            command = [sys.executable, "-m", "functions.engines.sim", "--port", str(port), *_FLAGS]
            process = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
        async with httpx.AsyncClient() as http, asyncio.timeout(90.0):
            for port in ports:
                await _until_well(EngineClient(http, f"http://127.0.0.1:{port}"))
        yield ports


async def _until_well(engine: EngineClient) -> None:
    while True:
        with contextlib.suppress(EngineError):
            await engine.health()
            return
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def beats(bus_url: str, ports: list[int]) -> AsyncIterator[None]:
    """Publish four heartbeats a second for each engine."""
    enough = asyncio.Event()

    async def beat() -> None:
        sequence = 0
        async with ValkeyBus(bus_url) as bus, httpx.AsyncClient() as http:
            clients = [EngineClient(http, f"http://127.0.0.1:{port}") for port in ports]
            while not enough.is_set():
                sequence += 1
                for number, (client, port) in enumerate(zip(clients, ports, strict=True)):
                    with contextlib.suppress(EngineError, BusUnavailable):
                        seen = await client.metrics()
                        await bus.publish(
                            heartbeat(
                                f"r{number}", port, sequence=sequence, adapters=(), running=seen.running,
                                waiting=seen.waiting, kv_usage_ratio=seen.kv_usage_ratio, kv_blocks_total=BLOCKS,
                                kv_block_tokens=16, service_ms=200.0, prefill_ms_per_token=0.07,
                            )
                        )  # fmt: skip
                await asyncio.sleep(0.25)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        enough.set()
        await task


async def send_requests(port: int, requests: int, engine_ports: list[int]) -> list[int]:
    """Send chats of two tenants and a batch key in bursts that exceed the engines' capacity.

    The engines are frozen until the first rejection, so that requests wait however slow this client is.
    """
    rng = Random(1)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60.0, limits=limits) as http:
        under_way: list[asyncio.Task[int]] = []
        await _freeze(http, engine_ports, frozen=True)
        while len(under_way) < requests // 2 and not any(task.done() for task in under_way):
            under_way.append(asyncio.create_task(_stream(http, len(under_way), rng.randrange(12), rng)))
            await asyncio.sleep(0.01)
        await _freeze(http, engine_ports, frozen=False)
        for number in range(len(under_way), requests):
            under_way.append(asyncio.create_task(_stream(http, number, rng.randrange(12), rng)))
            await asyncio.sleep(rng.expovariate(1 / 0.01) if number % 40 else 0.3)
        return await asyncio.gather(*under_way)


async def _freeze(http: httpx.AsyncClient, ports: list[int], *, frozen: bool) -> None:
    for port in ports:
        answer = await http.post(f"http://127.0.0.1:{port}/sim/faults", json={"freeze": frozen})
        answer.raise_for_status()


async def _stream(http: httpx.AsyncClient, number: int, chat: int, rng: Random) -> int:
    key = (ACME_KEY, GLOBEX_KEY, BATCH_KEY)[chat % 3]
    said = (
        f"Chat {chat} is about fish. " * (10 + 3 * chat) + f"Question {number}? " + "And why so? " * rng.randrange(20)
    )
    body = {
        "model": POOL, "stream": True, "max_tokens": rng.randrange(8, 80), "ignore_eos": True,
        "messages": [{"role": "user", "content": said}],
    }  # fmt: skip
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    if chat % 2:
        headers["x-session-id"] = f"chat-{chat}"
    async with http.stream("POST", "/v1/chat/completions", content=json.dumps(body), headers=headers) as answer:
        async for _ in answer.aiter_bytes():
            pass
        return answer.status_code
