"""A slow replica in a pool of two is drained and restarted by the controller, and every stream stays whole."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drills.streams import Stream, run_stream
from tests.fleets import Fleet, running_fleet, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.drill, pytest.mark.soak, pytest.mark.timeout(900)]

BASE = "smollm2-135m"
SLOW, WELL = f"{BASE}-1", f"{BASE}-0"
_FACTOR = 20.0
_AT_ONCE = 8
_PATIENCE_S = 300.0


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Run a fleet with times shorter than a minute, so that the test ends within one."""
    variables = {
        "SHOAL_REPLICA_PACE_INTERVAL_S": "2",
        "SHOAL_CONTROLLER_SLOW_AFTER_S": "8",
        "SHOAL_CONTROLLER_SLOW_BACKOFF_S": "5",
        "SHOAL_DRAIN_TIMEOUT_S": "120",
    }
    with running_fleet(tmp_path / "state", "sim", 2, variables=variables) as made:
        yield made


async def streams_until(fleet: Fleet, over: asyncio.Event) -> list[Stream]:
    """Run this many streams at once, each after the last, until `over` is set."""

    async def one_by_one() -> list[Stream]:
        done = []
        while not over.is_set():
            done.append(await run_stream(client, Stream(BASE)))
        return done

    async with fleet.async_client(timeout_s=_PATIENCE_S) as client:
        return [each for some in await asyncio.gather(*(one_by_one() for _ in range(_AT_ONCE))) for each in some]


def restarts(fleet: Fleet) -> str:
    with fleet.registry() as registry:
        page = registry.get("/metrics").text
    return next((line for line in page.splitlines() if line.startswith("shoal_slow_replica_restarts{")), "")


async def test_slow_replica_is_drained_and_restarted_without_broken_streams(fleet: Fleet) -> None:
    before = {replica: fleet.pid("engine", replica) for replica in (SLOW, WELL)}
    over = asyncio.Event()
    streams = asyncio.get_running_loop().create_task(streams_until(fleet, over))
    fleet.set_faults(SLOW, slow_factor=_FACTOR)

    def is_back() -> bool:
        phases = {each["replica_id"]: each["phase"] for each in fleet.replicas()}
        engine = fleet.processes().get(f"engine-{SLOW}", {"pid": before[SLOW]})  # a stopped engine is not listed
        return engine["pid"] != before[SLOW] and phases.get(SLOW) == "ready"

    try:
        took_s = await asyncio.to_thread(wait_until, "the slow replica is back", is_back, _PATIENCE_S, 0.5)
    finally:
        over.set()
        done = await streams
    assert fleet.pid("engine", WELL) == before[WELL]
    assert len(done) > _AT_ONCE
    assert [each for each in done if not each.intact] == []
    assert {each.replica for each in done} == {SLOW, WELL}
    wait_until("the registry was told", lambda: restarts(fleet).endswith(" 1.0"), 30.0)
    print(f"slow by {_FACTOR:.0f}x: back after {took_s:.1f} s, {len(done)} streams, all whole")
