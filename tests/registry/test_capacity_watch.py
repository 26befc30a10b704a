"""Accelerator time is counted once per minute for each reported replica; minutes without reports are not counted."""

from types import SimpleNamespace
from typing import Any

from functions.api.ids import PoolName
from functions.api.snapshot import PoolEntry
from functions.fleet import heartbeat as heartbeats
from functions.registry.capacity_watch import CapacityWatch
from functions.registry.fleet_watch import FleetWatch
from functions.registry.sql import usage
from functions.registry.sql.database import Database
from tests.gateway.rig import heartbeat
from tests.registry.rig import ScriptedBus

NOW_UNIX_S = 500_000 * 3600.0
POOLS = (
    PoolEntry(PoolName("base"), 2048, accelerators_per_replica=4, price_per_accelerator_hour=9.0),
    PoolEntry(PoolName("idle"), 2048),
)


def watching(database: Database, fleet: FleetWatch, *, at_s: float = 0.0) -> CapacityWatch:
    store: Any = SimpleNamespace(feed=SimpleNamespace(content=SimpleNamespace(snapshot=SimpleNamespace(pools=POOLS))))
    return CapacityWatch(database, fleet, store, lambda: NOW_UNIX_S + at_s, usage_days=400)


def fleet_with(*replicas: str) -> FleetWatch:
    fleet = FleetWatch(ScriptedBus(), clock=lambda: 0.0)
    for name in replicas:
        fleet.receive_message(heartbeats.encode(heartbeat(name, pool=PoolName("base"))))
    fleet.link.set(True)
    return fleet


def had(database: Database) -> dict[str, tuple[int, float, float]]:
    found = database.read(lambda c: usage.capacity_of(c, 0, 10**6))
    return {pool: (it.minutes, it.accelerator_seconds, round(it.cost, 6)) for pool, it in found.items()}


async def test_capacity_counts_all_accelerators_and_lists_empty_pools(database: Database) -> None:
    await watching(database, fleet_with("r0", "r1")).count_minute()
    assert had(database) == {"base": (1, 480.0, 1.2), "idle": (1, 0.0, 0.0)}


async def test_minute_is_counted_once_by_two_registries(database: Database) -> None:
    fleet = fleet_with("r0")
    for at_s in (1.0, 2.0, 61.0):
        await watching(database, fleet, at_s=at_s).count_minute()
    assert had(database)["base"] == (2, 480.0, 1.2)


async def test_minute_without_the_bus_is_not_counted(database: Database) -> None:
    fleet = fleet_with("r0")
    fleet.link.set(False)
    await watching(database, fleet).count_minute()
    assert had(database) == {}
