"""A thousand streams at once through one gateway process: none lost, none mixed up."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.drills.streams import Stream, run_all
from tests.e2e.projects import PATIENT, project_with, without_limits
from tests.fleets import Fleet, running_fleet, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.drill, pytest.mark.soak, pytest.mark.timeout(900)]

STREAMS = 1000
# Slow-down of an engine until nearly all streams are open. A stream is then open for over a minute, and the last of 500
# prompts at an engine has its first token within the minute that a gateway waits for it (`first_byte_s`).
HELD = 12.0
MODELS = {"acme": ("smollm2-135m", "acme/support-bot", "acme/pirate"), "globex": ("smollm2-135m", "globex/haiku")}


@pytest.fixture
def wide_fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Run a fleet whose engines run all streams at once and whose tiers allow it.

    The demo's engines take 32 requests a step, so the rest would only wait, and its tiers allow no tenant 500 at a
    time.
    """
    at_once = ("inferenceservices/smollm2-135m.yaml", "--max-num-seqs=32", "--max-num-seqs=1024")
    long_queue = ("policies/admission.yaml", "maxQueuedTokens: 2000000", "maxQueuedTokens: 20000000")
    very_patient = (PATIENT[0], PATIENT[1], PATIENT[2].replace("120s", "600s"))  # held engines look slow
    project = without_limits(project_with(tmp_path / "project", very_patient, at_once, long_queue))
    with running_fleet(tmp_path / "state", "sim", project=project) as fleet:
        fleet.pace(HELD)
        yield fleet


def test_no_stream_is_lost_or_mixed_up(wide_fleet: Fleet) -> None:
    gateway = psutil.Process(wide_fleet.pid("gateway"))
    before_bytes = gateway.memory_info().rss
    most_open, most_bytes = 0, before_bytes
    is_held = True

    async def drill() -> list[Stream]:
        nonlocal most_open, most_bytes, is_held
        streams = {
            tenant: [Stream(model=models[number % len(models)], words=20) for number in range(STREAMS // 2)]
            for tenant, models in MODELS.items()
        }
        async with asyncio.TaskGroup() as group:
            clients = {
                tenant: wide_fleet.async_client(tenant, timeout_s=600.0, connections=STREAMS) for tenant in streams
            }
            runs = [group.create_task(run_all(clients[tenant], streams[tenant])) for tenant in streams]
            while not all(run.done() for run in runs):
                most_open = max(
                    most_open, int(await asyncio.to_thread(wide_fleet.gateway_metric, "shoal_open_requests"))
                )
                most_bytes = max(most_bytes, gateway.memory_info().rss)
                if is_held and most_open > STREAMS * 0.9:
                    is_held = False
                    await asyncio.to_thread(wide_fleet.pace, 1.0)
                await asyncio.sleep(0.5)
        for client in clients.values():
            await client.aclose()
        return [stream for run in runs for stream in run.result()]

    finished = asyncio.run(drill())
    broken = [stream for stream in finished if not stream.intact]
    per_stream_kib = (most_bytes - before_bytes) / 1024 / STREAMS
    print(f"{STREAMS} TLS streams, {most_open} open at once, {per_stream_kib:.1f} KiB of gateway memory a stream")
    assert not broken, broken[:3]
    assert most_open > STREAMS * 0.9
    wait_until("nothing is open", lambda: wide_fleet.gateway_metric("shoal_open_requests") == 0, 60)
