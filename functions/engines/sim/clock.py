"""The two clocks: engine seconds (monotonic; steps and latencies) and wall seconds (the `created` of a response)."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def now_s(self) -> float:
        """Monotonic."""
        ...

    def wall_s(self) -> float:
        """Since 1970."""
        ...

    async def sleep_until(self, when_s: float) -> None: ...


class SystemClock:
    def now_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()

    async def sleep_until(self, when_s: float) -> None:
        await asyncio.sleep(max(0.0, when_s - time.monotonic()))
