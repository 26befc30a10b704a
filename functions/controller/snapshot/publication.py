"""Keeping the registry's snapshot equal to what is desired: seed the artifacts, compile, publish, try again.

The registry and S3 are processes of the same fleet: at the start they are not there yet, and that is no error but a
reason to try again soon.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from functions.api.snapshot import Snapshot
from functions.artifacts.errors import ArtifactError
from functions.controller.local.context import PlanContext
from functions.controller.local.seeding import open_store, seed_adapters
from functions.controller.snapshot.publish import PublishOutcome

# A channel waits for replicas to load something: mostly they say so within a second. What never loads costs a
# compilation at each try, so that pauses grow until they are those of anything that is missing.
HELD_RETRY_S = 0.3
HELD_GROWTH = 1.3

_log = logging.getLogger(__name__)

Publish = Callable[[], Awaitable[PublishOutcome]]


class Publication:
    """Owned by one event loop."""

    def __init__(self, publish: Publish, context: Callable[[], PlanContext], adapters_dir: Path) -> None:
        self.last = PublishOutcome("unavailable", "not published yet")
        self.snapshot: Snapshot | None = None  # what the registry holds, as far as is known
        self.seeded: tuple[str, ...] = ()
        self.seed_problems: tuple[str, ...] = ()
        self._publish = publish
        self._context = context
        self._adapters_dir = adapters_dir

    async def seed(self, s3_is_ready: Callable[[], Awaitable[bool]], changed: asyncio.Event, retry_s: float) -> None:
        """Until everything that can be published is; then what was waiting for an artifact is looked at again."""
        while True:
            if await s3_is_ready() and await asyncio.to_thread(self._seed_once):
                break
            await asyncio.sleep(retry_s)
        changed.set()

    async def run(self, changed: asyncio.Event, retry_s: float, resync_s: float) -> None:
        """Until cancelled: publish at once after a change, soon while something is missing, else now and then."""
        held_s = HELD_RETRY_S
        while True:
            held_s = HELD_RETRY_S if changed.is_set() else held_s
            changed.clear()
            self.last = await self._publish()
            self.snapshot = self.last.snapshot or self.snapshot
            again_s = min(retry_s, held_s) if self.last.held else retry_s
            held_s = min(retry_s, held_s * HELD_GROWTH) if self.last.held else HELD_RETRY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(resync_s if self.last.complete else again_s):
                    await changed.wait()

    def _seed_once(self) -> bool:
        try:
            with contextlib.closing(open_store(self._context())) as store:
                seeded = seed_adapters(store, self._adapters_dir)
        except ArtifactError as error:
            self.seed_problems = (str(error),)
            return False
        self.seeded, self.seed_problems = seeded.published, seeded.problems
        _log.info("published %d artifacts to S3; %d refused", len(seeded.published), len(seeded.problems))
        return True
