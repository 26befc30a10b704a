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
from functions.controller.publish import PublishOutcome

HELD_RETRY_S = 0.3  # a channel waits for replicas to load something: they say so within a second

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
        while True:
            changed.clear()
            self.last = await self._publish()
            self.snapshot = self.last.snapshot or self.snapshot
            again_s = min(retry_s, HELD_RETRY_S) if self.last.held else retry_s
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
