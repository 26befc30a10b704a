"""The garbage collector's ledger in SQL; functions/artifacts/collect.py states its rules.

Each call is one transaction that locks `gc_state` and takes its `moment` from there. So the starts of ingests and the
marks of candidates have one order, whatever the clocks of two registries say. The ledger is not audited: it only
deletes content that nothing names.
"""

import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection, delete, func, insert, select, update

from functions.artifacts.collect import IngestId
from functions.registry.sql.database import Database
from functions.registry.sql.tables import gc_candidates, gc_state, ingests

_SLICE = 500

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class SqlLedger:
    """GcLedger on the registry's database. One instance for all threads; its methods block."""

    database: Database

    def begin_ingest(self, now_unix_s: float, expires_unix_s: float) -> IngestId:
        ingest = IngestId(uuid.uuid4().hex)

        def open_session(connection: Connection, moment: int) -> IngestId:
            connection.execute(insert(ingests).values(id=ingest, moment=moment, expires_unix_s=expires_unix_s))
            return ingest

        return self._locked(open_session)

    def end_ingest(self, ingest: IngestId) -> bool:
        def end(connection: Connection, _: int) -> bool:
            return connection.execute(delete(ingests).where(ingests.c.id == ingest)).rowcount == 1

        return self._locked(end)

    def unmark(self, keys: Collection[str]) -> frozenset[str]:
        return self._locked(lambda connection, _: _unmark(connection, keys))

    def mark(self, keys: Collection[str], now_unix_s: float) -> None:
        def mark(connection: Connection, moment: int) -> None:
            wanted = set(keys)
            known = set(connection.scalars(select(gc_candidates.c.key)))
            candidates = set(connection.scalars(select(gc_candidates.c.key).where(~gc_candidates.c.deleting)))
            for part in _slices(candidates - wanted):
                connection.execute(delete(gc_candidates).where(gc_candidates.c.key.in_(part)))
            row = {"moment": moment, "marked_unix_s": now_unix_s, "deleting": False}
            for part in _slices(wanted - known):
                connection.execute(insert(gc_candidates), [{"key": key, **row} for key in part])

        self._locked(mark)

    def due(self, marked_before_unix_s: float, now_unix_s: float) -> frozenset[str]:
        return self._locked(lambda connection, _: _due(connection, marked_before_unix_s, now_unix_s))

    def deleting(self, keys: Collection[str], marked_before_unix_s: float, now_unix_s: float) -> frozenset[str]:
        def move(connection: Connection, _: int) -> frozenset[str]:
            connection.execute(delete(ingests).where(ingests.c.expires_unix_s <= now_unix_s))
            moved = _due(connection, marked_before_unix_s, now_unix_s) & set(keys)
            for part in _slices(moved):
                connection.execute(update(gc_candidates).where(gc_candidates.c.key.in_(part)).values(deleting=True))
            return moved

        return self._locked(move)

    def in_deletion(self) -> frozenset[str]:
        query = select(gc_candidates.c.key).where(gc_candidates.c.deleting)
        return self.database.read(lambda connection: frozenset(connection.scalars(query)))

    def spare(self, keys: Collection[str]) -> None:
        self._forget(keys)

    def deleted(self, keys: Collection[str]) -> None:
        self._forget(keys)

    def _forget(self, keys: Collection[str]) -> None:
        def forget(connection: Connection, _: int) -> None:
            for part in _slices(keys):
                mine = (gc_candidates.c.key.in_(part), gc_candidates.c.deleting)
                connection.execute(delete(gc_candidates).where(*mine))

        self._locked(forget)

    def _locked(self, work: Callable[[Connection, int], Answer]) -> Answer:
        def locked(connection: Connection) -> Answer:
            return work(connection, lock(connection))

        return self.database.write_unaudited(locked)


def lock(connection: Connection) -> int:
    """Lock the ledger until the transaction ends. Return the ledger's moment, a counter that is now higher than ever
    before."""
    moment = connection.execute(select(gc_state.c.moment).with_for_update()).scalar_one() + 1
    connection.execute(update(gc_state).values(moment=moment))
    return int(moment)


def unmark_within(connection: Connection, keys: Collection[str]) -> frozenset[str]:
    """Run `unmark` in the caller's transaction, which names the content of these keys. Return the keys that are already
    being deleted."""
    lock(connection)
    return _unmark(connection, keys)


def is_open(connection: Connection, ingest: IngestId) -> bool:
    """Return True if the ingest session has neither ended nor expired. Call after `unmark_within`, in the same
    transaction."""
    return connection.scalar(select(func.count()).where(ingests.c.id == ingest)) == 1


def _unmark(connection: Connection, keys: Collection[str]) -> frozenset[str]:
    held: set[str] = set()
    for part in _slices(keys):
        mine = gc_candidates.c.key.in_(part)
        connection.execute(delete(gc_candidates).where(mine, ~gc_candidates.c.deleting))
        held.update(connection.scalars(select(gc_candidates.c.key).where(mine)))
    return frozenset(held)


def _due(connection: Connection, marked_before_unix_s: float, now_unix_s: float) -> frozenset[str]:
    open_ingests = select(func.min(ingests.c.moment)).where(ingests.c.expires_unix_s > now_unix_s)
    oldest = connection.scalar(open_ingests)
    query = select(gc_candidates.c.key).where(
        ~gc_candidates.c.deleting, gc_candidates.c.marked_unix_s <= marked_before_unix_s
    )
    if oldest is not None:
        query = query.where(gc_candidates.c.moment < oldest)
    return frozenset(connection.scalars(query))


def _slices(keys: Collection[str]) -> Iterator[list[str]]:
    ordered = sorted(keys)
    return (ordered[start : start + _SLICE] for start in range(0, len(ordered), _SLICE))
