"""The collector's ledger in SQL keeps the laws of functions/artifacts/collect.py."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from functions.artifacts.collect import GcLedger
from functions.registry.sql.database import Database
from functions.registry.sql.ledger import SqlLedger
from functions.registry.sql.tables import gc_candidates, ingests
from tests.artifacts.gc_ledger import FileLedger

A, B = "chunks/sha256/" + "a" * 64, "chunks/sha256/" + "b" * 64


@pytest.fixture
def ledger(database: Database) -> GcLedger:
    return SqlLedger(database)


def test_a_marked_key_is_due_once_it_is_old_enough(ledger: GcLedger) -> None:
    ledger.mark({A, B}, 100.0)
    assert ledger.due(99.9, 200.0) == frozenset()
    assert ledger.due(100.0, 200.0) == {A, B}


def test_second_mark_keeps_the_first_time_and_drops_reached_keys(ledger: GcLedger) -> None:
    ledger.mark({A, B}, 100.0)
    ledger.mark({A}, 150.0)
    assert ledger.due(100.0, 200.0) == {A}


def test_unmarked_key_is_no_longer_a_candidate(ledger: GcLedger) -> None:
    ledger.mark({A, B}, 100.0)
    assert ledger.unmark({A}) == frozenset()
    assert ledger.deleting({A, B}, 100.0, 200.0) == {B}
    assert ledger.unmark({A, B}) == {B}  # too late for this key: the caller must wait for it
    assert ledger.in_deletion() == {B}


def test_open_ingest_protects_keys_marked_after_its_start(ledger: GcLedger) -> None:
    ledger.mark({A}, 100.0)
    ingest = ledger.begin_ingest(100.0, 500.0)
    ledger.mark({A, B}, 100.0)
    assert ledger.due(100.0, 200.0) == {A}
    assert ledger.deleting({A, B}, 100.0, 200.0) == {A}
    assert ledger.end_ingest(ingest) is True
    assert ledger.deleting({A, B}, 100.0, 200.0) == {B}


def test_expired_ingest_is_refused(ledger: GcLedger) -> None:
    ingest = ledger.begin_ingest(100.0, 150.0)
    ledger.mark({A}, 100.0)
    assert ledger.deleting({A}, 100.0, 200.0) == {A}
    assert ledger.end_ingest(ingest) is False


def test_spared_and_deleted_keys_leave_the_ledger(ledger: GcLedger) -> None:
    ledger.mark({A, B}, 100.0)
    ledger.deleting({A, B}, 100.0, 200.0)
    ledger.spare({A})
    ledger.deleted({B})
    assert ledger.in_deletion() == frozenset()
    assert ledger.due(1000.0, 1000.0) == frozenset()


def test_ledger_handles_thousands_of_keys_at_once(ledger: GcLedger) -> None:
    keys = {f"chunks/sha256/{number:064x}" for number in range(2500)}
    ledger.mark(keys, 100.0)
    assert ledger.unmark(set(sorted(keys)[:1200])) == frozenset()
    assert len(ledger.deleting(keys, 100.0, 200.0)) == 1300


def test_deleting_and_unmark_exclude_each_other(ledger: GcLedger) -> None:
    """If an ingest and a collector act at the same moment, one gets the key and the other is notified."""
    for round_ in range(10):
        ledger.mark({A}, 100.0 + round_)
        with ThreadPoolExecutor(2) as pool:
            moved = pool.submit(ledger.deleting, {A}, 200.0, 300.0)
            held = pool.submit(ledger.unmark, {A})
        assert moved.result() == held.result()  # both {A}: deleting came first; both empty: unmark did
        ledger.spare({A})
        ledger.mark(set(), 100.0)


calls = st.one_of(
    st.tuples(st.just("begin"), st.integers(0, 50), st.integers(1, 60)),
    st.tuples(st.just("end"), st.integers(0, 5)),
    st.tuples(st.just("unmark"), st.sets(st.sampled_from([A, B]))),
    st.tuples(st.just("mark"), st.sets(st.sampled_from([A, B])), st.integers(0, 50)),
    st.tuples(st.just("deleting"), st.sets(st.sampled_from([A, B])), st.integers(0, 60), st.integers(0, 60)),
    st.tuples(st.just("spare"), st.sets(st.sampled_from([A, B]))),
    st.tuples(st.just("deleted"), st.sets(st.sampled_from([A, B]))),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(script=st.lists(calls, max_size=15))
def test_sql_ledger_answers_like_the_memory_ledger(database: Database, script: list[tuple[object, ...]]) -> None:
    database.write_unaudited(lambda c: [c.execute(delete(table)) for table in (gc_candidates, ingests)])
    sql, memory = SqlLedger(database), FileLedger(":memory:")
    opened: list[tuple[object, object]] = []
    for name, *arguments in script:
        if name == "begin":
            begins, lasts = (float(number) for number in arguments)  # type: ignore[arg-type]
            opened.append((sql.begin_ingest(begins, begins + lasts), memory.begin_ingest(begins, begins + lasts)))
        elif name == "end":
            if opened:
                one, other = opened.pop(int(arguments[0]) % len(opened))  # type: ignore[call-overload]
                assert sql.end_ingest(one) == memory.end_ingest(other)  # type: ignore[arg-type]
        else:
            given_ = [float(it) if isinstance(it, int) else it for it in arguments]
            assert getattr(sql, str(name))(*given_) == getattr(memory, str(name))(*given_), name
        assert sql.in_deletion() == memory.in_deletion()
        assert sql.due(60.0, 30.0) == memory.due(60.0, 30.0)
