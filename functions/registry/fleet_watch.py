"""The fleet as the bus tells it: what `GET /v1/fleet` shows.

The bus gone, the last view stays and ages: each replica's `age_s` grows until silence takes it out.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from functions.fleet import heartbeat as heartbeats
from functions.fleet.bus import Bus
from functions.fleet.heartbeat import Heartbeat, HeartbeatInvalid
from functions.fleet.view import FleetView
from functions.registry.pool_watch import PoolWatch


@dataclass(frozen=True, slots=True)
class Seen:
    heartbeat: Heartbeat
    age_s: float  # since its last beat came


class FleetWatch:
    """Owned by one event loop."""

    def __init__(self, bus: Bus, clock: Callable[[], float] = time.monotonic) -> None:
        self.bus_connected = False
        self.refused_total = 0  # messages that were no heartbeats
        self._bus = bus
        self._clock = clock
        self._view = FleetView()
        self.pools = PoolWatch(clock)

    async def run(self) -> None:
        """Follow the bus until it is lost: BusUnavailable."""
        try:
            for message in await self._bus.latest():
                self.take(message)
            self.bus_connected = True
            async for message in self._bus.listen():
                self.take(message)
        finally:
            self.bus_connected = False

    def take(self, message: bytes) -> None:
        try:
            self._view.fold(heartbeats.decode(message), self._clock())
        except HeartbeatInvalid:
            self.refused_total += 1

    def replicas(self) -> list[Seen]:
        """Everyone who is not silent, by id."""
        now_s = self._clock()
        self._view.expire(now_s)
        return [Seen(beat, max(0.0, now_s - seen_s)) for beat, seen_s in self._view.heartbeats()]
