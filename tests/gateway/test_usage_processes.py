"""Usage between processes: a killed gateway, a registry that comes late, and complete bills."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.gateway.client_rig import post
from tests.gateway.live import PlayedEngine, well
from tests.gateway.processes import GatewayProcess, exited, valkey
from tests.gateway.test_processes import connected, fleet
from tests.ports import free_port
from tests.registry.test_process import TOKEN, environment, registry

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]  # starts several processes and waits for each
_WRITTEN_S = 3.0  # sums are written to disk each second
_PATIENCE_S = 90.0


async def send_requests(gateway: GatewayProcess, requests: int) -> None:
    async with connected(gateway, None) as caller:
        for _ in range(requests):
            await caller.send(post())
            assert (await caller.answer()).status == 200


@contextlib.asynccontextmanager
async def serving(folder: Path, port: int) -> AsyncIterator[httpx.Client]:
    with contextlib.ExitStack() as stack:
        folder.mkdir()
        made = registry(environment(folder, port), f"http://127.0.0.1:{port}")
        yield await asyncio.to_thread(stack.enter_context, made)


async def billed(client: httpx.Client, requests: int) -> dict[str, int]:
    """Return the total once it has so many requests, or after the time limit."""
    total: dict[str, int] = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            while total.get("requests", 0) < requests:
                await asyncio.sleep(0.5)
                total = (await asyncio.to_thread(client.get, "/v1/usage")).json()["total"] or {}
    return total


def generated(engine: PlayedEngine) -> tuple[int, int, int]:
    """Return the engine's requests, prompt tokens and answer tokens; `well` reports three and two of each."""
    return len(engine.served), 3 * len(engine.served), 2 * len(engine.served)


async def test_bills_are_complete_after_a_registry_outage_and_a_killed_gateway(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    port = free_port()
    with valkey(tmp_path) as bus_url:
        gateway = GatewayProcess(tmp_path, bus_url, certificate, registry_url=f"http://127.0.0.1:{port}")
        (tmp_path / "token").write_text(TOKEN)
        async with fleet(bus_url, well) as engine:
            with gateway.start() as process:
                await gateway.ready()
                await send_requests(gateway, 7)
                await asyncio.sleep(_WRITTEN_S)
                process.kill()
                await asyncio.to_thread(process.wait)
            with gateway.start() as process:
                await gateway.ready()
                async with serving(tmp_path / "registry", port) as client:
                    total = await billed(client, 7)
                    assert (total["requests"], total["prompt_tokens"], total["completion_tokens"]) == generated(engine)
                    await send_requests(gateway, 5)
                    process.send_signal(signal.SIGTERM)
                    assert await exited(process) == 0
                    total = await billed(client, 12)
                    assert (total["requests"], total["prompt_tokens"], total["completion_tokens"]) == generated(engine)
                    shown = await asyncio.to_thread(shoal, tmp_path, port)
                    assert "acme/bot" in shown and "12" in shown.splitlines()[-2].split(), shown
    assert list((tmp_path / "usage").iterdir()) == [], "all was told"
    assert "Traceback" not in gateway.log()


def shoal(folder: Path, port: int) -> str:
    named = {
        "SHOAL_CLI_REGISTRY_URL": f"http://127.0.0.1:{port}",
        "SHOAL_CLI_KEY": TOKEN,
        "SHOAL_STATE_DIR": str(folder / "none"),
    }
    command = [sys.executable, "-m", "functions.cli.main", "usage", "--by", "tenant,model,day"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | named, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
