"""Usage in SQL: each report and each minute counts once, on both databases."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from functions.fleet.usage_report import UsageReport, UsageRow
from functions.registry.sql import usage
from functions.registry.sql.database import Database
from functions.registry.sql.usage import MinuteOfPool, UsageFilter

DAY = 24
ALL = UsageFilter(0, 10**6)


def row(hour: int = 0, tenant: str = "acme", model: str = "acme/bot", pool: str = "base", tokens: int = 1) -> UsageRow:
    return UsageRow(
        hour, tenant, model, "v1", pool, "interactive", 1, completion_tokens=tokens, accelerator_seconds=tokens / 4
    )


def report(sequence: int, *rows: UsageRow, source: str = "a" * 32) -> UsageReport:
    return UsageReport(source, sequence, "gateway", rows)


def count(database: Database, told: UsageReport) -> bool:
    return database.write_unaudited(lambda c: usage.count_report(c, told, 1000.0))


def total(database: Database, wanted: UsageFilter = ALL) -> tuple[int, int, float]:
    (found,) = database.read(lambda c: usage.sums(c, wanted, (), 1)) or [{}]
    return found.get("requests", 0), found.get("completion_tokens", 0), found.get("accelerator_seconds", 0.0)


def test_repeated_report_changes_nothing(database: Database) -> None:
    assert count(database, report(1, row(tokens=3), row(tenant="globex", tokens=5)))
    assert not count(database, report(1, row(tokens=3), row(tenant="globex", tokens=5)))
    assert total(database) == (2, 8, 2.0)


def test_later_reports_add_up_and_earlier_ones_are_ignored(database: Database) -> None:
    assert count(database, report(1, row(tokens=3)))
    assert count(database, report(3, row(tokens=4))), "the second was refused, say: it never comes"
    assert not count(database, report(2, row(tokens=100)))
    assert count(database, report(1, row(tokens=6), source="b" * 32)), "another process counts from 1, too"
    assert total(database) == (3, 13, 3.25)


def test_report_that_fails_half_way_is_not_counted(database: Database) -> None:
    def fails(connection: object) -> None:
        usage.count_report(connection, report(1, row(tokens=3)), 1000.0)  # type: ignore[arg-type]
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        database.write_unaudited(fails)
    assert total(database) == (0, 0, 0.0)
    assert count(database, report(1, row(tokens=3))), "it comes again, and counts"


def test_concurrent_reports_lose_nothing(database: Database) -> None:
    """Each gateway sends its rows in another order, and every report twice."""
    rows = [row(model=f"acme/m{number}") for number in range(20)]
    reports = [
        report(sequence, *rows[turn:], *rows[:turn], source=f"{turn:032x}")
        for turn in range(6)
        for sequence in (1, 1, 2, 2)
    ]
    by_source = [reports[start : start + 4] for start in range(0, len(reports), 4)]
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda own: [count(database, each) for each in own], by_source))
    assert total(database) == (240, 240, 60.0)


def test_sums_group_by_the_requested_fields(database: Database) -> None:
    rows = (row(DAY), row(DAY + 1, model="acme/chat", tokens=2), row(2 * DAY, "globex", "globex/bot", "large", 4))
    count(database, report(1, *rows))

    def by(*dimensions: usage.Dimension) -> list[tuple[object, ...]]:
        found = database.read(lambda c: usage.sums(c, ALL, dimensions, 100))
        return [(*(each[name] for name in dimensions), each["completion_tokens"]) for each in found]

    assert by("tenant") == [("acme", 3), ("globex", 4)]
    assert by("model") == [("acme/bot", 1), ("acme/chat", 2), ("globex/bot", 4)]
    assert by("day") == [(86_400, 3), (172_800, 4)]
    assert by("hour", "pool") == [(86_400, "base", 1), (90_000, "base", 2), (172_800, "large", 4)]
    assert total(database, UsageFilter(DAY, DAY + 1)) == (1, 1, 0.25), "an hour's end is the next one's beginning"
    assert total(database, UsageFilter(0, 1000, "globex")) == (1, 4, 1.0)
    assert total(database, UsageFilter(0, 1000, model="acme/chat")) == (1, 2, 0.5)
    assert total(database, UsageFilter(0, 1000, pool="nothing")) == (0, 0, 0.0)


def test_minute_seen_by_two_registries_counts_once(database: Database) -> None:
    """Two registries watch and one is late. Four replicas of two accelerators cost 3.60 per hour."""
    seen = [MinuteOfPool("base", 4, 8, 3.6), MinuteOfPool("empty", 0, 0, 3.6)]
    for minute in (60, 60, 61, 60, 61):
        database.write_unaudited(lambda c, minute=minute: usage.count_minute(c, minute, seen))
    had = database.read(lambda c: usage.capacity_of(c, 1, 2))
    assert (had["base"].minutes, had["base"].replica_seconds, had["base"].accelerator_seconds) == (2, 480.0, 960.0)
    assert had["base"].cost == pytest.approx(0.96)
    assert (had["empty"].minutes, had["empty"].cost) == (2, 0.0)
    assert database.read(lambda c: usage.capacity_of(c, 2, 3)) == {}


def test_old_usage_is_deleted(database: Database) -> None:
    count(database, report(1, row(1), row(5)))
    database.write_unaudited(lambda c: usage.delete_before(c, 5, 1000.0))
    assert total(database) == (1, 1, 0.25)
    assert not count(database, report(1, row(1))), "what was counted stays known for longer than it may come again"
