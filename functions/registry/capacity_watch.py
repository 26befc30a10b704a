"""Record the paid capacity: once a minute, the number of replicas of each pool and their cost.

Every replica with a recent heartbeat counts as paid, ready or not. A minute without the bus is not counted;
`minutes_seen` is the number of counted minutes. If several registries share a database, each minute still counts
once.

This task also deletes usage and capacity older than `usage_days`.
"""

import asyncio
import functools
from collections import Counter
from collections.abc import Callable

from functions.registry.fleet_watch import FleetWatch
from functions.registry.sql import usage
from functions.registry.sql.database import Database
from functions.registry.sql.usage import MinuteOfPool
from functions.registry.store import SnapshotStore

_MINUTE_S = 60
_DAY_S = 86_400


class CapacityWatch:
    """Task that counts the capacity of each minute. Owned by one event loop."""

    def __init__(
        self,
        database: Database,
        fleet: FleetWatch,
        store: SnapshotStore,
        wall_clock: Callable[[], float],
        usage_days: int,
    ) -> None:
        self._database = database
        self._fleet = fleet
        self._store = store
        self._wall_clock = wall_clock
        self._usage_days = usage_days
        self._forgot_day = -1

    async def run(self) -> None:
        """Count the pools' capacity of every minute, a second after its beginning, until cancelled. Raises
        DatabaseUnavailable."""
        while True:
            await asyncio.sleep(_MINUTE_S - self._wall_clock() % _MINUTE_S + 1.0)
            await self.count_minute()

    async def count_minute(self) -> None:
        """Add the present minute to each pool's capacity, unless the bus is unavailable; once a day, delete usage and
        capacity older than `usage_days`."""
        now_unix_s = self._wall_clock()
        if self._fleet.bus_connected:
            count = functools.partial(
                usage.count_minute, minute=int(now_unix_s) // _MINUTE_S, pools=self._pool_minutes()
            )
            await self._write(count)
        if int(now_unix_s) // _DAY_S != self._forgot_day:
            before = int(now_unix_s - self._usage_days * _DAY_S) // 3600
            await self._write(functools.partial(usage.delete_before, hour=before, now_unix_s=now_unix_s))
            self._forgot_day = int(now_unix_s) // _DAY_S

    def _pool_minutes(self) -> list[MinuteOfPool]:
        """Return replicas, accelerators and price for each pool of the snapshot, including pools without replicas."""
        there = Counter(seen.heartbeat.pool for seen in self._fleet.replicas())
        return [
            MinuteOfPool(
                entry.name,
                there[entry.name],
                there[entry.name] * entry.accelerators_per_replica,
                entry.price_per_accelerator_hour,
            )
            for entry in self._store.feed.content.snapshot.pools
        ]

    async def _write(self, work: Callable[..., None]) -> None:
        await self._database.run(functools.partial(self._database.write_unaudited, work))
