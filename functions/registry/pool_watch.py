"""What gateways tell of pools, kept for the controller; and what the controller wants, kept for Prometheus."""

import time
from collections.abc import Callable, Mapping

from functions.fleet.bus import PoolBus
from functions.fleet.pool_board import PoolBoard, PoolSum
from functions.fleet.pool_report import DesiredPool

DESIRED_FOR_S = 60.0  # a controller that is gone wants nothing any more


class PoolWatch:
    """Owned by one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._board = PoolBoard()
        self._desired: tuple[DesiredPool, ...] = ()
        self._desired_s = float("-inf")

    async def follow(self, bus: PoolBus) -> None:
        """Until the bus is lost: BusUnavailable."""
        async for message in bus.pools():
            self.take(message)

    def take(self, message: bytes) -> None:
        self._board.take(message, self._clock())

    def sums(self) -> Mapping[str, PoolSum]:
        return self._board.sums(self._clock())

    def want(self, desired: tuple[DesiredPool, ...]) -> None:
        self._desired, self._desired_s = desired, self._clock()

    def desired(self) -> tuple[DesiredPool, ...]:
        """What the controller wants of pools; nothing where it has not said so lately."""
        return self._desired if self._clock() - self._desired_s <= DESIRED_FOR_S else ()
