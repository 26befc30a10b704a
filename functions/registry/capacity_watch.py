"""Watch of the capacity that is paid: once a minute, how many replicas each pool has, and what they cost.

Who is paid is who is there: every replica that the fleet has heard of lately, ready or not. A minute in which the bus
was out of reach is not counted, and `minutes_seen` says how many were. Several registries of one database watch alike;
each minute counts once.

What is older than `usage_days` is forgotten here, too.
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
    """Owned by one event loop."""

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
        """For ever, a little after each minute's beginning: DatabaseUnavailable."""
        while True:
            await asyncio.sleep(_MINUTE_S - self._wall_clock() % _MINUTE_S + 1.0)
            await self.look()

    async def look(self) -> None:
        """Count the present minute."""
        now_unix_s = self._wall_clock()
        if self._fleet.bus_connected:
            count = functools.partial(usage.take_minute, minute=int(now_unix_s) // _MINUTE_S, pools=self._pools())
            await self._written(count)
        if int(now_unix_s) // _DAY_S != self._forgot_day:
            before = int(now_unix_s - self._usage_days * _DAY_S) // 3600
            await self._written(functools.partial(usage.forget_before, hour=before, now_unix_s=now_unix_s))
            self._forgot_day = int(now_unix_s) // _DAY_S

    def _pools(self) -> list[MinuteOfPool]:
        """Those of the snapshot, also where they have nothing."""
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

    async def _written(self, work: Callable[..., None]) -> None:
        await self._database.run(functools.partial(self._database.unaudited, work))
