"""Share published snapshots with the other registries of one database, and with the successor of this process.

The controller publishes to one registry, whichever its Service selects. A publication is written to the database
before followers see it. Every registry adopts the others' publications: when the bus announces one, and every
`LOOK_EVERY_S`. So all registries give the same answers, and a new pod with an empty disk starts with the last
publication.

If the database is unavailable, publication continues on the local disk, and the registry writes its snapshot to the
database as soon as it is back. Followers can switch between registries safely, since they only move to higher epochs:
a follower ahead of its registry waits until the registry catches up.

Neighbours: `sql/published` stores the documents; `store` publishes to followers.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Sequence

from functions.api import snapshot_document as documents
from functions.api.snapshot import SnapshotInvalid
from functions.api.snapshot_document import in_chunks
from functions.api.snapshot_index import Indexed
from functions.fleet.pauses import PATIENT_SLICE_S, pause_between_slices
from functions.fleet.snapshot_notices import SnapshotNotice
from functions.registry.sql import published
from functions.registry.sql.database import Database
from functions.registry.sql.errors import DatabaseUnavailable
from functions.registry.sql.published import EpochBehind, SnapshotDocument
from functions.registry.store import EpochTaken, SnapshotStore

LOOK_EVERY_S = 2.0
_log = logging.getLogger(__name__)


class SnapshotSharing:
    """Exchange of snapshots through the database. Owned by one event loop, except `share_publication`."""

    def __init__(self, database: Database, store: SnapshotStore) -> None:
        self._database = database
        self._store = store
        self._told = asyncio.Event()
        self._unread = 0  # an epoch that could not be read, which is logged once
        store.set_share(self.share_publication)

    def share_publication(self, content: Indexed, delta: bytes, base_hash: str) -> None:
        """Write a publication to the database before followers see it. Blocks. Raises EpochTaken if another registry
        has published this epoch or a later one; an unavailable database is only logged."""
        try:
            self._put(content, delta, base_hash)
        except EpochBehind as error:
            self._told.set()
            raise EpochTaken(f"epoch {content.snapshot.epoch} is not above the other registries': {error}") from error
        except DatabaseUnavailable as error:
            _log.warning("epoch %d is stored only on this disk for now: %s", content.snapshot.epoch, error)

    def notify_published(self, notice: SnapshotNotice) -> None:
        """Wake `run` if another registry has announced a later epoch on the bus."""
        if notice.epoch > self._store.epoch:
            self._told.set()

    async def run(self) -> None:
        """Synchronise with the database every LOOK_EVERY_S, and on notices, until cancelled. Raises
        DatabaseUnavailable."""
        while True:
            await self.sync_once()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._told.wait()

    async def sync_once(self) -> None:
        """Adopt a later snapshot from the database, or write ours to it if ours is later."""
        self._told.clear()
        store = self._store
        latest = await self._database.run(lambda: self._database.read(published.latest), for_operator=True)
        if latest > store.epoch:
            await self._adopt_latest(latest)
        elif latest < store.epoch:
            content = store.feed.content
            with contextlib.suppress(EpochBehind):  # written by another registry in the meantime
                await self._database.run(lambda: self._put(content, b"", ""), for_operator=True)

    async def _adopt_latest(self, latest: int) -> None:
        base = self._store.feed.content
        after = functools.partial(published.documents_after, epoch=base.snapshot.epoch, content_hash=base.content_hash)
        found = await self._database.run(lambda: self._database.read(after), for_operator=True)
        try:
            await self._store.adopt(lambda current: _read(current, found))
        except SnapshotInvalid as error:
            if latest != self._unread:
                _log.error("epoch %d of another registry cannot be read here and is skipped: %s", latest, error)
            self._unread = latest

    def _put(self, content: Indexed, delta: bytes, base_hash: str) -> None:
        if not self._database.ready:
            raise DatabaseUnavailable("the registry's database is not ready yet")
        whole = lambda: b"".join(documents.full_lines(content.snapshot))  # noqa: E731
        document = SnapshotDocument(content.snapshot.epoch, content.content_hash, delta, base_hash, whole)
        self._database.write_unaudited(lambda connection: published.put(connection, document))


def _read(base: Indexed, found: Sequence[bytes]) -> Indexed:
    """Apply the snapshot documents (deltas, or a whole one first) to `base` in order, and return the content. Blocks.
    Raises SnapshotInvalid."""
    content = base
    for document in found:
        content = documents.read(in_chunks(document), content, pause_between_slices(PATIENT_SLICE_S))
    return content
