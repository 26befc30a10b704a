"""The keeper of the disk tier: says what this engine needs, makes room, and tells the heartbeat what is there.

One pass at a time, soon after something changed and every few seconds anyway, since the other agents of the node fill
the same disk. A disk that refuses keeps nobody from being served: it is said, and tried again.
"""

import asyncio
import logging

from functions.artifacts.errors import CacheFailed
from functions.replica.daemon_threads import in_daemon_thread
from functions.replica.disk_needs import DiskNeeds
from functions.replica.disk_tier import DiskTier
from functions.replica.status import AgentStatus

LOOK_EVERY_S = 10.0
NOT_MORE_OFTEN_THAN_S = 2.0  # a look walks the whole cache: 80 ms of CPU for 2,000 artifacts

_log = logging.getLogger(__name__)


class DiskKeeper:
    def __init__(self, status: AgentStatus, disk: DiskTier, needs: DiskNeeds) -> None:
        self._status = status
        self._disk = disk
        self._needs = needs
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Something came to the disk, or is needed no more."""
        self._changed.set()

    async def run(self) -> None:
        while True:
            self._changed.clear()
            await self.tend()
            await asyncio.sleep(NOT_MORE_OFTEN_THAN_S)
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def tend(self) -> None:
        """One pass; none before the engine has said what it holds: the lease of the agent before us is what counts."""
        if not self._status.adapters.known:
            return
        needed = self._needs.needed(self._status.clock())

        def work() -> None:
            try:
                self._disk.lease(needed)
            finally:  # a disk too full for a lease is one that room must be made on
                self._status.disk = self._disk.tend()

        try:
            await in_daemon_thread("disk tier", work)
        except CacheFailed as error:
            _log.warning("the disk tier: %s", error)
