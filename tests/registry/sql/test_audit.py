"""The audit chain: its entries, and the detection of every change to it."""

import hashlib

import pytest
from sqlalchemy import delete, update

from functions.registry.sql import audit
from functions.registry.sql.audit import FIRST_HASH, Actor
from functions.registry.sql.database import Database
from functions.registry.sql.tables import audit as table
from functions.registry.sql.tables import state

ALICE = Actor("key:alice", "req-1")


def fill(database: Database, count: int) -> None:
    for number in range(count):
        database.write(
            ALICE, lambda write, number=number: write.add_audit_entry("made", f"thing-{number}", "acme", n=number)
        )


def test_audit_hashes_cover_the_canonical_entries(database: Database) -> None:
    fill(database, 2)
    (second, first) = database.read(lambda c: audit.page(c, None, 10))
    text = audit.canonical({key: value for key, value in first.items() if key != "hash"})
    assert text == (
        '{"action":"made","actor":"key:alice","at_unix_s":1000.0,"change":1,"detail":{"n":0},"request_id":"req-1",'
        '"seq":1,"subject":"thing-0","tenant":"acme"}'
    )
    assert first["hash"] == hashlib.sha256((FIRST_HASH + text).encode()).hexdigest()
    rest = audit.canonical({key: value for key, value in second.items() if key != "hash"})
    assert second["hash"] == hashlib.sha256((first["hash"] + rest).encode()).hexdigest()
    verified = database.read(audit.verify)
    assert (verified.entries, verified.head, verified.broken_at) == (2, second["hash"], None)


def test_audit_pages_go_back_in_time_and_filter_by_tenant(database: Database) -> None:
    fill(database, 3)
    database.write(ALICE, lambda write: write.add_audit_entry("made", "other", "globex"))
    assert [entry["seq"] for entry in database.read(lambda c: audit.page(c, None, 2))] == [4, 3]
    assert [entry["seq"] for entry in database.read(lambda c: audit.page(c, 3, 9))] == [2, 1]
    assert [entry["seq"] for entry in database.read(lambda c: audit.page(c, None, 2, "acme"))] == [3, 2]


@pytest.mark.parametrize("page_rows", [1, 2, 1000])
def test_unchanged_chain_verifies_over_pages(
    database: Database, monkeypatch: pytest.MonkeyPatch, page_rows: int
) -> None:
    monkeypatch.setattr(audit, "_VERIFY_PAGE", page_rows)
    fill(database, 4)
    assert database.read(audit.verify).broken_at is None


def test_changed_entry_is_detected(database: Database) -> None:
    fill(database, 4)
    database.write_unaudited(lambda c: c.execute(update(table).where(table.c.seq == 2).values(entry='{"seq":2}')))
    found = database.read(audit.verify)
    assert (found.entries, found.broken_at) == (1, 2)


def test_changed_and_rehashed_entry_is_detected_at_the_next_entry(database: Database) -> None:
    fill(database, 4)
    first = database.read(lambda c: audit.page(c, 2, 1))[0]["hash"]
    forged = {"entry": '{"seq":2}', "hash": audit.hash_of(first, '{"seq":2}')}
    database.write_unaudited(lambda c: c.execute(update(table).where(table.c.seq == 2).values(**forged)))
    assert database.read(audit.verify).broken_at == 3


def test_missing_entry_is_detected(database: Database) -> None:
    fill(database, 4)
    database.write_unaudited(lambda c: c.execute(delete(table).where(table.c.seq == 3)))
    assert database.read(audit.verify).broken_at == 3


def test_truncated_chain_is_detected(database: Database) -> None:
    fill(database, 4)
    database.write_unaudited(lambda c: c.execute(delete(table).where(table.c.seq > 2)))
    found = database.read(audit.verify)
    assert (found.entries, found.broken_at) == (2, 3)
    assert "4 entries were written" in found.reason


def test_wrong_chain_head_is_detected(database: Database) -> None:
    fill(database, 2)
    database.write_unaudited(lambda c: c.execute(update(state).values(audit_hash=FIRST_HASH)))
    assert database.read(audit.verify).broken_at == 3
