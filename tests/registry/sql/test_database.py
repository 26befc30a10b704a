"""Writes are serialized and atomic, and failures say what to do."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Connection, inspect, select, update
from sqlalchemy.exc import DBAPIError

from functions.registry.sql import audit, engine
from functions.registry.sql import errors as failures
from functions.registry.sql.audit import Actor
from functions.registry.sql.database import Database
from functions.registry.sql.engine import UrlInvalid, database_url
from functions.registry.sql.errors import DatabaseUnavailable, SchemaUnknown
from functions.registry.sql.tables import audit as audit_table
from functions.registry.sql.tables import metadata, state
from functions.registry.sql.transaction import Write
from tests.registry.backends import BACKENDS

ALICE = Actor("key:alice")


def change_of(database: Database) -> int:
    return int(database.read(lambda c: c.scalar(select(state.c.change))) or 0)


def test_migrations_build_these_tables(database: Database) -> None:
    def shape(connection: object) -> dict[str, set[tuple[str, bool]]]:
        found = inspect(connection)
        return {
            name: {(column["name"], bool(column["nullable"])) for column in found.get_columns(name)}  # type: ignore[union-attr]
            for name in found.get_table_names()  # type: ignore[union-attr]
            if name != "alembic_version"
        }

    wanted = {
        table.name: {(column.name, bool(column.nullable)) for column in table.columns}
        for table in metadata.sorted_tables
    }
    assert database.read(shape) == wanted
    indexes = database.read(
        lambda c: {index["name"] for name in wanted for index in inspect(c).get_indexes(name) if index["name"]}
    )
    assert indexes >= {str(index.name) for table in metadata.sorted_tables for index in table.indexes}


def test_second_prepare_changes_nothing(database: Database) -> None:
    lineage = database.read(lambda c: c.scalar(select(state.c.lineage)))
    database.write(ALICE, lambda write: write.add_audit_entry("made", "thing"))
    database.prepare()
    assert (database.read(lambda c: c.scalar(select(state.c.lineage))), change_of(database)) == (lineage, 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_concurrent_prepares_succeed(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = request.getfixturevalue("postgres").new_database() if backend == "postgres" else None
    them = [Database(database_url(url, tmp_path)) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda it: it.prepare(), them))
    assert len({it.read(lambda c: c.scalar(select(state.c.lineage))) for it in them}) == 1
    for it in them:
        it.close()


def test_later_schema_is_refused_with_a_message(database: Database) -> None:
    database.write_unaudited(lambda c: c.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SchemaUnknown, match="run the version that made it"):
        database.prepare()


def test_write_without_audit_entry_is_rolled_back(database: Database) -> None:
    database.write(ALICE, lambda write: write.connection.execute(update(state).values(fence=7)))
    assert database.read(lambda c: c.scalar(select(state.c.fence))) == 0


def test_failed_write_is_rolled_back_and_its_number_reused(database: Database) -> None:
    def fail(write: Write) -> None:
        write.add_audit_entry("made", "thing")
        raise KeyError("no")

    with pytest.raises(KeyError):
        database.write(ALICE, fail)
    database.write(ALICE, lambda write: write.add_audit_entry("made", "another"))
    (entry,) = database.read(lambda c: audit.page(c, None, 10))
    assert (entry["seq"], entry["change"], entry["subject"]) == (1, 1, "another")


def test_writes_of_threads_and_registries_are_serialized(database: Database, url: str | None, tmp_path: Path) -> None:
    other = Database(database_url(url, tmp_path))
    other.prepare()
    seen: list[int] = []
    lock = threading.Lock()

    def write(number: int) -> None:
        def work(it: Write) -> int:
            it.add_audit_entry("made", f"thing-{number}")
            return it.change

        change = (database, other)[number % 2].write(ALICE, work)
        with lock:
            seen.append(change)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(60)))
    assert sorted(seen) == list(range(1, 61))
    assert database.read(audit.verify).entries == 60
    assert database.read(audit.verify).broken_at is None
    other.close()


def test_fence_only_rises_and_is_shared_by_registries(database: Database, url: str | None, tmp_path: Path) -> None:
    other = Database(database_url(url, tmp_path))
    other.prepare()
    said = ((database, 7), (other, 6), (other, 0), (other, 9), (database, 8))
    assert [registry.raise_fence(token) for registry, token in said] == [7, 7, 7, 9, 9]
    other.close()


def test_lock_has_one_holder_at_a_time(database: Database, url: str | None, tmp_path: Path) -> None:
    other = Database(database_url(url, tmp_path))
    with database.exclusive_lock("collecting") as mine, other.exclusive_lock("collecting") as theirs:
        assert (mine, theirs) == (True, False)
        with other.exclusive_lock("another") as free:
            assert free
    with other.exclusive_lock("collecting") as theirs:
        assert theirs
    other.close()


def test_read_is_consistent_during_concurrent_writes(database: Database, url: str | None, tmp_path: Path) -> None:
    """An inconsistent read would see a truncated chain, or a model without its channel's version."""
    other = Database(database_url(url, tmp_path))
    database.write(ALICE, lambda write: write.add_audit_entry("made", "thing"))

    def read(connection: Connection) -> tuple[list[int], int]:
        before = list(connection.scalars(select(audit_table.c.seq)))
        other.write(ALICE, lambda write: write.add_audit_entry("made", "another"))
        return before, audit.verify(connection).entries

    assert database.read(read) == ([1], 1)
    assert database.read(audit.verify).entries == 2
    other.close()


async def test_calls_before_the_database_is_ready_get_retry_advice(tmp_path: Path) -> None:
    made = Database(database_url(None, tmp_path))
    with pytest.raises(DatabaseUnavailable, match="not ready yet"):
        await made.run(lambda: None)
    made.close()


async def test_waiting_calls_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("functions.registry.sql.database.MAX_PENDING", 0)
    made = Database(database_url(None, tmp_path))
    made.prepare()
    with pytest.raises(DatabaseUnavailable, match="too many"):
        await made.run(lambda: None)
    made.close()


def test_locked_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LOCK_TIMEOUT_S", 0.1)
    made = Database(database_url(None, tmp_path))
    made.prepare()
    holder = sqlite3.connect(tmp_path / engine.SQLITE_FILE, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseUnavailable, match="another process holds the SQLite file"):
        made.write(ALICE, lambda write: write.add_audit_entry("made", "thing"))
    assert change_of(made) == 0  # reads still work
    holder.execute("ROLLBACK")
    made.write(ALICE, lambda write: write.add_audit_entry("made", "thing"))
    assert change_of(made) == 1
    holder.close()
    made.close()


def test_damaged_file_is_kept_and_reported(tmp_path: Path) -> None:
    file = tmp_path / engine.SQLITE_FILE
    file.write_bytes(b"this is no database, but somebody may still want to look at it" * 100)
    made = Database(database_url(None, tmp_path))
    with pytest.raises(DatabaseUnavailable, match="damaged; restore a backup"):
        made.prepare()
    assert file.read_bytes().startswith(b"this is no database")
    made.close()


def test_full_disk_is_reported_and_leaves_no_partial_write(tmp_path: Path) -> None:
    made = Database(database_url(None, tmp_path))
    made.prepare()
    made.write_unaudited(lambda c: c.exec_driver_sql("PRAGMA max_page_count = 60"))
    with pytest.raises(DatabaseUnavailable, match="disk under the registry's database is full"):
        for _ in range(100):
            made.write(ALICE, lambda write: write.add_audit_entry("made", "x" * 10_000))
    made.close()
    again = Database(database_url(None, tmp_path))
    again.prepare()
    found = again.read(audit.verify)
    assert (found.broken_at, found.entries) == (None, change_of(again))
    again.close()


def test_unreachable_postgres_is_reported(tmp_path: Path) -> None:
    made = Database(database_url("postgresql://shoal:s3cret@127.0.0.1:1/none", tmp_path))
    with pytest.raises(DatabaseUnavailable) as caught:
        made.prepare()
    assert "cannot be used" in str(caught.value)
    assert "s3cret" not in str(caught.value) + repr(made.url)
    made.close()


@pytest.mark.parametrize("given", ["", "mysql://x/y", "sqlite://", "nonsense", "sqlite:///:memory:"])
def test_other_database_urls_are_refused_with_a_message(given: str, tmp_path: Path) -> None:
    with pytest.raises(UrlInvalid, match="postgresql://"):
        database_url(given, tmp_path)


def test_error_text_fits_on_a_line() -> None:
    error = DBAPIError("SELECT 1", {"secret": "x"}, Exception("a\nb" * 1000))
    assert "\n" not in failures.explain_error(error) and len(failures.explain_error(error)) < 400
    assert "secret" not in failures.explain_error(error)
