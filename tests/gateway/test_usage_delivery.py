"""Delivery of usage: once, in order, and complete at the end of a process, whatever the registry answers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from functions.fleet.usage_report import UsageReport, UsageRow, decode
from functions.gateway.usage.delivery import NotDelivered, UsageCollector, UsageDelivery
from functions.gateway.usage.spool import UsageSpool
from functions.gateway.usage.sums import UsageSums
from tests.gateway.rig import NOW_UNIX_S, Clock
from tests.gateway.usage_rig import killed


class Rig:
    """A delivery to a played registry: `answers` are its next answers, then 200; None means no answer."""

    def __init__(self, folder: Path) -> None:
        self.answers: list[int | None] = []
        self.heard: list[UsageReport] = []
        self.clock = Clock()
        self.sums = UsageSums(lambda: NOW_UNIX_S)
        self.delivery = UsageDelivery(self.sums, UsageSpool(folder), self._post, "gateway", self.clock)

    def uses(self, tokens: int) -> None:
        self.sums.restore_rows(
            [UsageRow(1, "acme", "acme/bot", "v1", "pool", "interactive", 1, completion_tokens=tokens)]
        )

    def counted(self) -> list[int]:
        """Return the tokens of each new report."""
        new = {(report.source, report.sequence): report for report in self.heard}
        return [sum(row.completion_tokens for row in report.rows) for report in new.values()]

    def metric(self, name: str, **labels: str) -> float:
        samples = [sample for family in UsageCollector(self.delivery).collect() for sample in family.samples]
        return next(one.value for one in samples if one.name == name and one.labels == labels)

    def _post(self, report: bytes) -> int:
        answer = self.answers.pop(0) if self.answers else 200
        if answer is None:
            raise NotDelivered("it is away")
        if answer < 300:
            self.heard.append(decode(report))
        return answer


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    killed(made.delivery.spool)


async def test_usage_is_delivered_after_a_registry_outage(rig: Rig) -> None:
    rig.answers = [None, 503, 404]
    rig.uses(3)
    await rig.delivery.write_once()
    for _ in range(3):
        with pytest.raises(NotDelivered):
            rig.delivery.deliver()
        rig.clock.forward(10.0)
    assert rig.metric("shoal_usage_undelivered_seconds") == 30.0 and rig.metric("shoal_usage_waiting_bytes") > 0
    rig.delivery.deliver()
    assert rig.counted() == [3]
    assert rig.metric("shoal_usage_undelivered_seconds") == rig.metric("shoal_usage_waiting_bytes") == 0.0
    assert rig.metric("shoal_usage_reports_total", outcome="failed") == 3.0


async def test_close_delivers_all_usage_after_a_failed_report(rig: Rig) -> None:
    rig.answers = [None]
    rig.uses(3)
    await rig.delivery.write_once()
    with pytest.raises(NotDelivered):
        rig.delivery.deliver()
    rig.uses(4)
    await rig.delivery.close()
    assert rig.counted() == [3, 4]
    assert list(rig.delivery.spool.directory.iterdir()) == []


async def test_refused_report_is_kept_on_disk_and_does_not_block_others(rig: Rig) -> None:
    rig.answers = [413]
    rig.uses(3)
    await rig.delivery.write_once()
    rig.delivery.deliver()
    rig.uses(4)
    await rig.delivery.write_once()
    rig.delivery.deliver()
    assert rig.counted() == [4] and rig.metric("shoal_usage_reports_total", outcome="refused") == 1.0
    assert len(list(rig.delivery.spool.directory.glob("*/*.refused"))) == 1


async def test_failed_disk_write_keeps_usage_in_memory(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(rows: object) -> None:
        raise OSError("read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(rig.delivery.spool, "write", fails)
        for tokens in (3, 4):
            rig.uses(tokens)
            await rig.delivery.write_once()
    assert rig.metric("shoal_usage_unspooled_requests") == 2.0
    await rig.delivery.write_once()
    rig.delivery.deliver()
    assert rig.counted() == [7] and rig.metric("shoal_usage_unspooled_requests") == 0.0
