"""Leaving without breaking a request: tell the fleet, wait until the engine is empty, then say goodbye.

"Empty" counts only from readings taken after gateways had time to hear of it: a request that was routed here in the
same moment is on its way, and the engine's gauges know nothing of it yet.
"""

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from functions.replica.status import AgentStatus

HEARD_AFTER_S = 2.0  # two beats: every gateway has the news, and what it had sent before has arrived
_LOOK_INTERVAL_S = 0.1

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Drain:
    status: AgentStatus
    timeout_s: float
    began_s: float | None = None

    def begin(self, why: str) -> None:
        """Announce it; the heart tells the fleet with its next beat. Again is harmless."""
        if self.began_s is None:
            self.began_s = self.status.clock()
            self.status.draining = True
            _log.info("draining: %s", why)

    @property
    def done(self) -> bool:
        """Whether nothing is left to wait for."""
        if self.began_s is None:
            return False
        if self.status.health.phase in ("starting", "dead"):
            return True
        return self.status.load.outstanding == 0 and self.status.load_read_s >= self.began_s + HEARD_AFTER_S

    async def wait(self, timeout_s: float | None = None, *, until: asyncio.Event | None = None) -> bool:
        """Wait until done, out of time, or `until` is set; whether it is done."""
        limit_s = self.timeout_s if timeout_s is None else min(timeout_s, self.timeout_s)
        deadline_s = self.status.clock() + limit_s
        hurry = until or asyncio.Event()
        while not self.done and not hurry.is_set() and (left_s := deadline_s - self.status.clock()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, _LOOK_INTERVAL_S)):
                    await hurry.wait()
        return self.done
