"""Spool of usage: what is written is delivered once, whatever is killed or fails."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from functions.fleet.usage_report import UsageReport, UsageRow
from functions.gateway.usage.spool import Pending, SpoolFull, UsageSpool
from tests.gateway.usage_rig import killed

HOUR = 500_000


def row(tenant: str = "acme", tokens: int = 1, **changes: object) -> UsageRow:
    return UsageRow(HOUR, tenant, f"{tenant}/bot", "v1", "pool", "interactive", 1, completion_tokens=tokens, **changes)  # type: ignore[arg-type]


def tokens(reports: Iterable[UsageReport]) -> int:
    return sum(each.completion_tokens for report in reports for each in report.rows)


def reports_of(pending: Iterable[Pending]) -> list[UsageReport]:
    return [each.report("gateway") for each in pending]


Spools = Callable[..., UsageSpool]


@pytest.fixture
def spools(tmp_path: Path) -> Iterator[Spools]:
    made: list[UsageSpool] = []

    def make_spool(**bounds: int) -> UsageSpool:
        made.append(UsageSpool(tmp_path, **bounds))
        return made[-1]

    yield make_spool
    for spool in made:
        killed(spool)


def left(directory: Path) -> list[UsageReport]:
    return [report for files in UsageSpool(directory).abandoned() for report in reports_of(files)]


def test_rows_of_one_key_are_added_in_the_report(spools: Spools) -> None:
    spool = spools()
    spool.write([row(tokens=3), row("globex", 5)])
    spool.write([row(tokens=4)])
    (report,) = reports_of(spool.pending())
    assert (report.source, report.sequence) == (spool.source, 1)
    assert {each.tenant: (each.requests, each.completion_tokens) for each in report.rows} == {
        "acme": (2, 7),
        "globex": (1, 5),
    }


def test_unanswered_report_is_repeated_unchanged(spools: Spools) -> None:
    """Rows that come meanwhile belong to another report: otherwise one number would have two contents."""
    spool = spools()
    spool.write([row(tokens=3)])
    first = reports_of(spool.pending())
    spool.write([row(tokens=4)])
    assert reports_of(spool.pending()) == first
    spool.pending()[0].delete()
    (second,) = reports_of(spool.pending())
    assert (second.sequence, tokens([second])) == (2, 4)


def test_nothing_is_pending_without_rows(spools: Spools) -> None:
    spool = spools()
    assert spool.pending() == []
    spool.write([row()])
    spool.pending()[0].delete()
    assert spool.pending() == []


def test_reports_of_a_killed_process_are_delivered_by_another(spools: Spools, tmp_path: Path) -> None:
    spool = spools()
    spool.write([row(tokens=3)])
    spool.pending()  # sent, and the process is killed before the answer
    spool.write([row(tokens=4)])
    assert left(tmp_path) == [], "it lives: two deliverers would mix up the order"
    killed(spool)
    reports = left(tmp_path)
    assert [(report.source, report.sequence) for report in reports] == [(spool.source, 1), (spool.source, 2)]
    assert tokens(reports) == 7


def test_truncated_line_is_ignored(spools: Spools, tmp_path: Path) -> None:
    spool = spools()
    spool.write([row(tokens=3)])
    path = next(tmp_path.glob("*/*.ndjson"))
    with path.open("ab") as file:
        file.write(b'[{"hour": 1, "tenant": "ac')
    killed(spool)
    assert tokens(left(tmp_path)) == 3


def test_rows_of_a_write_that_failed_count_once(spools: Spools, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk had stored the line when the write failed, and the caller writes the rows again."""
    spool = spools()
    spool.write([row(tokens=3)])
    real = os.fsync

    def fails(descriptor: int) -> None:
        real(descriptor)
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        with pytest.raises(OSError, match="no space"):
            spool.write([row(tokens=4)])
    spool.write([row(tokens=4)])
    assert tokens(reports_of(spool.pending())) == 7


def test_spool_size_during_an_outage_grows_with_keys_not_time(spools: Spools) -> None:
    spool = spools(compact_bytes=2000)
    for _ in range(200):
        spool.write([row(tokens=1), row("globex", 2)])
        assert spool.waiting_bytes() < 3500
    assert tokens(reports_of(spool.pending())) == 600


def test_full_spool_refuses_writes_and_keeps_its_rows(spools: Spools) -> None:
    spool = spools(spool_bytes=1000)
    spool.write([row(tokens=3)])
    with pytest.raises(SpoolFull):
        spool.write([row(f"tenant-{number}") for number in range(9)])
    assert tokens(reports_of(spool.pending())) == 3


def test_too_many_keys_are_split_into_several_reports(spools: Spools) -> None:
    spool = spools()
    for part in range(3):
        spool.write([row(f"tenant-{part}-{number}") for number in range(6_000)])
    reports = reports_of(spool.pending())
    assert [len(report.rows) for report in reports] == [6_000, 6_000]
    for pending in spool.pending():
        pending.delete()
    assert [len(report.rows) for report in reports_of(spool.pending())] == [6_000]


def test_delivered_usage_leaves_no_directory_behind(spools: Spools, tmp_path: Path) -> None:
    first, second = spools(), spools()
    first.write([row()])
    second.write([row()])
    killed(first)
    for files in second.abandoned():
        for pending in files:
            pending.delete()
    for pending in second.pending():
        pending.delete()
    second.close()
    assert list(tmp_path.iterdir()) == []
