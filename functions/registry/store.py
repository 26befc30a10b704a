"""The published snapshot: one at a time, durable before it is seen, epochs only ever growing.

A file that cannot be believed is set aside under a name that tells why, and the registry starts without a snapshot:
the controller publishes again, and the data plane goes on with its own copy meanwhile.

The floor: followers say in `after` how far they have got. Where that is beyond our own epoch, we are the ones who lost
state, and no snapshot at or below it would reach them; so the next epoch must be above it. A follower may be ahead by
at most `MAX_LEAD`, or a typing error in one request would use up the epochs.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from functions.api import snapshot as snapshots
from functions.api.snapshot import Snapshot, SnapshotInvalid
from functions.fleet import snapshot_file

MAX_LEAD = 100_000
_log = logging.getLogger(__name__)


class EpochTaken(Exception):
    """The epoch is not after what is published or has been seen: publish above it."""


class StoreFailed(Exception):
    """The disk refused; nothing changed. Try again once it is repaired."""


class TooManyWaiters(Exception):
    """As many long polls wait as may; try again later."""


@dataclass(frozen=True, slots=True)
class Published:
    snapshot: Snapshot
    document: bytes
    snapshot_hash: str

    @property
    def epoch(self) -> int:
        return self.snapshot.epoch


class SnapshotStore:
    """Owned by one event loop."""

    def __init__(self, file: Path, max_waiters: int = 10_000) -> None:
        self.current: Published | None = None
        self.closing = False
        self.waiters = 0
        self._file = file
        self._max_waiters = max_waiters
        self._highest_heard = 0
        self._changed = asyncio.Event()  # replaced at each publication, so that a set one never has to be cleared
        self._publishing = asyncio.Lock()

    @property
    def epoch(self) -> int:
        return self.current.epoch if self.current is not None else 0

    @property
    def epoch_floor(self) -> int:
        """The next epoch must be above this."""
        return max(self.epoch, self._highest_heard)

    def load(self) -> None:
        """Take up what was published before the restart."""
        try:
            snapshot = snapshot_file.read(self._file)
        except SnapshotInvalid as error:
            aside = self._file.with_name(self._file.name + ".refused")
            with contextlib.suppress(OSError):  # unreadable and unmovable: the next publication will say so
                self._file.replace(aside)
            _log.error("the stored snapshot is refused and set aside as %s: %s", aside.name, error)
            return
        if snapshot is not None:
            self.current = _published(snapshot)
            _log.info("snapshot epoch %d (%s) taken up", self.epoch, self.current.snapshot_hash)

    def heard(self, after: int) -> None:
        """A follower has got as far as `after`."""
        if self._highest_heard < after <= self.epoch_floor + MAX_LEAD:
            self._highest_heard = after

    async def publish(self, snapshot: Snapshot) -> Published:
        """Make it the current one; EpochTaken or StoreFailed, and nothing has changed."""
        async with self._publishing:
            if snapshot.epoch <= self.epoch_floor:
                raise EpochTaken(
                    f"epoch {snapshot.epoch} is not after the current epoch {self.epoch}"
                    f" (the next one must be above {self.epoch_floor})"
                )
            published = await asyncio.to_thread(_published, snapshot)
            try:
                await asyncio.to_thread(snapshot_file.write, self._file, published.document)
            except OSError as error:
                raise StoreFailed(f"the snapshot could not be stored: {error.strerror}") from error
            self.current = published
            _log.info("snapshot epoch %d (%s) published", self.epoch, published.snapshot_hash)
            self._wake()
            return published

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A place among those who wait; TooManyWaiters where there is none."""
        if self.waiters >= self._max_waiters:
            raise TooManyWaiters
        self.waiters += 1
        try:
            yield
        finally:
            self.waiters -= 1

    async def beyond(self, after: int, timeout_s: float) -> Published | None:
        """The current snapshot once its epoch is above `after`; None when the time is over or the store closes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.epoch <= after and not self.closing:
                    await self._changed.wait()
        return self.current if self.epoch > after else None

    def close(self) -> None:
        """End every wait, now and from now on."""
        self.closing = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _published(snapshot: Snapshot) -> Published:
    return Published(snapshot, snapshots.encode(snapshot), snapshots.content_hash(snapshot))
