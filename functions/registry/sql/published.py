"""The published snapshot in SQL: a whole document and the deltas after it, as on a follower's disk.

Rows are in the order of their epochs, and a row's epoch is above all before. So if two registries receive
publications at the same time, one is rejected because its epoch is taken. A delta's row names the content that it
changes. When the deltas outgrow the whole document, a new whole document replaces all rows. Documents are compressed:
ten thousand models and fifty thousand tenants are some megabytes.

Neighbours: `functions.registry.sharing` decides when to read and write.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select

from functions.api.snapshot_document import SNAPSHOT_MAX_BYTES
from functions.registry.sql.tables import published_snapshots, state

MAX_DELTAS = 100
_LEVEL = 1  # 30 MB in a third of a second


class EpochBehind(Exception):
    """Another registry has published this epoch or a later one."""

    def __init__(self, latest: int) -> None:
        super().__init__(f"another registry has published epoch {latest}")
        self.latest = latest


@dataclass(frozen=True, slots=True)
class SnapshotDocument:
    """A publication to store. `whole` is only called if the whole document is needed."""

    epoch: int
    content_hash: str
    delta: bytes  # empty: no delta, or one that is too large
    base_hash: str  # base of the delta
    whole: Callable[[], bytes]


def latest(connection: Connection) -> int:
    """Return the last published epoch, or 0 if none was published."""
    return connection.scalar(select(func.max(published_snapshots.c.epoch))) or 0


def put(connection: Connection, document: SnapshotDocument) -> None:
    """Store the publication in the caller's transaction: its delta if that continues the last one, else the whole
    document instead of all stored ones. Raises EpochBehind if its epoch is not the highest."""
    connection.execute(select(state.c.fence).with_for_update())  # one writer at a time among all registries
    last = latest(connection)
    if document.epoch <= last:
        raise EpochBehind(last)
    if _accepts_delta(connection, document):
        _insert(connection, document, document.base_hash, document.delta)
    else:
        connection.execute(delete(published_snapshots))
        _insert(connection, document, "", document.whole())


def documents_after(connection: Connection, epoch: int, content_hash: str) -> list[bytes]:
    """Return the documents that lead from the content with this epoch and hash to the latest: deltas, or a whole one
    first. Empty if nothing is newer."""
    table = published_snapshots.c
    columns = (table.epoch, table.base_hash, table.document)
    newer = connection.execute(select(*columns).where(table.epoch > epoch).order_by(table.epoch)).all()
    if newer and newer[0].base_hash not in ("", content_hash):  # the deltas are for other content
        newer = connection.execute(select(*columns).order_by(table.epoch)).all()
    begins = max((index for index, row in enumerate(newer) if not row.base_hash), default=0)
    return _unpacked([row.document for row in newer[begins:]])


def _accepts_delta(connection: Connection, document: SnapshotDocument) -> bool:
    """Return True if there is a delta, the last row is its base, and the deltas are few and have not outgrown the whole
    document."""
    if not document.delta:
        return False
    table = published_snapshots.c
    sizes = select(table.base_hash, table.content_hash, func.length(table.document)).order_by(table.epoch)
    rows = connection.execute(sizes).all()
    if not rows or rows[-1].content_hash != document.base_hash or len(rows) > MAX_DELTAS:
        return False
    whole_bytes, *delta_bytes = (row[2] for row in rows)
    return bool(sum(delta_bytes) + len(document.delta) <= whole_bytes)


def _insert(connection: Connection, document: SnapshotDocument, base_hash: str, content: bytes) -> None:
    row = {"epoch": document.epoch, "content_hash": document.content_hash, "base_hash": base_hash}
    connection.execute(insert(published_snapshots).values(**row, document=zlib.compress(content, _LEVEL)))


def _unpacked(packed: Sequence[bytes]) -> list[bytes]:
    """Decompress the documents, up to the size limit of a snapshot."""
    return [zlib.decompressobj().decompress(each, SNAPSHOT_MAX_BYTES) for each in packed]
