"""Ledger of the garbage collector in one SQLite file, which survives a killed process."""

import sqlite3
import uuid
import weakref
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from functions.artifacts.collect import IngestId

_TABLES = """
create table if not exists moments (moment integer primary key autoincrement, of text);
create table if not exists ingests (id text primary key, moment integer, expires_unix_s real);
create table if not exists candidates (key text primary key, moment integer, marked_unix_s real, deleting integer);
"""


def _kept_open(path: str) -> sqlite3.Connection:
    """Open a connection that closes with its ledger, in any thread that drops the last reference."""
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


class FileLedger:
    def __init__(self, path: Path | str) -> None:
        self._path = str(path)
        self._kept = _kept_open(self._path) if self._path == ":memory:" else None
        if self._kept is not None:
            weakref.finalize(self, self._kept.close)
        with self._transaction() as database:
            for table in _TABLES.split(";"):
                database.execute(table)

    def begin_ingest(self, now_unix_s: float, expires_unix_s: float) -> IngestId:
        with self._transaction() as database:
            ingest = IngestId(uuid.uuid4().hex)
            database.execute("insert into ingests values (?, ?, ?)", (ingest, _moment(database), expires_unix_s))
            return ingest

    def end_ingest(self, ingest: IngestId) -> bool:
        with self._transaction() as database:
            return database.execute("delete from ingests where id = ?", (ingest,)).rowcount == 1

    def unmark(self, keys: Collection[str]) -> frozenset[str]:
        with self._transaction() as database:
            for key in keys:
                database.execute("delete from candidates where key = ? and not deleting", (key,))
            return _column(database, "select key from candidates") & frozenset(keys)

    def mark(self, keys: Collection[str], now_unix_s: float) -> None:
        with self._transaction() as database:
            moment = _moment(database)
            for key in _column(database, "select key from candidates where not deleting") - set(keys):
                database.execute("delete from candidates where key = ?", (key,))
            for key in keys:
                database.execute("insert or ignore into candidates values (?, ?, ?, 0)", (key, moment, now_unix_s))

    def due(self, marked_before_unix_s: float, now_unix_s: float) -> frozenset[str]:
        with self._transaction() as database:
            return _due(database, marked_before_unix_s, now_unix_s)

    def deleting(self, keys: Collection[str], marked_before_unix_s: float, now_unix_s: float) -> frozenset[str]:
        with self._transaction() as database:
            database.execute("delete from ingests where expires_unix_s <= ?", (now_unix_s,))
            moved = _due(database, marked_before_unix_s, now_unix_s) & frozenset(keys)
            for key in moved:
                database.execute("update candidates set deleting = 1 where key = ?", (key,))
            return moved

    def in_deletion(self) -> frozenset[str]:
        with self._transaction() as database:
            return _column(database, "select key from candidates where deleting")

    def spare(self, keys: Collection[str]) -> None:
        self.deleted(keys)

    def deleted(self, keys: Collection[str]) -> None:
        with self._transaction() as database:
            for key in keys:
                database.execute("delete from candidates where key = ? and deleting", (key,))

    def candidates(self) -> frozenset[str]:
        with self._transaction() as database:
            return _column(database, "select key from candidates")

    def open_ingests(self) -> frozenset[str]:
        with self._transaction() as database:
            return _column(database, "select id from ingests")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self._kept is not None:
            yield self._kept
            return
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=60.0)) as database:
            database.execute("begin immediate")
            yield database
            database.execute("commit")


def _moment(database: sqlite3.Connection) -> int:
    return int(database.execute("insert into moments (of) values ('')").lastrowid or 0)


def _due(database: sqlite3.Connection, marked_before_unix_s: float, now_unix_s: float) -> frozenset[str]:
    oldest = database.execute("select min(moment) from ingests where expires_unix_s > ?", (now_unix_s,)).fetchone()[0]
    return _column(
        database,
        "select key from candidates where not deleting and marked_unix_s <= ? and moment < ?",
        (marked_before_unix_s, oldest if oldest is not None else 2**62),
    )


def _column(database: sqlite3.Connection, query: str, values: tuple[object, ...] = ()) -> frozenset[str]:
    return frozenset(row[0] for row in database.execute(query, values))
