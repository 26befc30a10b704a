"""Prometheus metrics of the agent's snapshot and heartbeats."""

from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from functions.fleet.snapshots import SnapshotFollower
from functions.replica.heartbeat_loop import HeartbeatCounts
from functions.replica.metrics import AgentMetrics
from functions.telemetry.bus_link import BusLink
from tests.replica.statuses import make_status


def values(page: bytes) -> dict[str, float]:
    families = text_string_to_metric_families(page.decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


async def test_metrics_show_snapshot_age_and_refusals(tmp_path: Path) -> None:
    metrics = AgentMetrics(make_status(), HeartbeatCounts())
    async with httpx.AsyncClient() as client:
        follower = SnapshotFollower(
            client=client,
            registry_url="http://127.0.0.1:1",
            token="t",
            cache_file=tmp_path / "cache",
            on_swap=lambda _: None,
            wall_clock=lambda: 1030.0,
        )
        metrics.watch_snapshot(follower)
        before = values(metrics.page())
        assert (before["shoal_snapshot_epoch"], before["shoal_snapshot_refused_total"]) == (7, 0)
        assert "shoal_snapshot_age_seconds" not in before, "the registry was never heard"
        (tmp_path / "cache").write_bytes(b"rubbish\n")
        follower.load_cached()
        follower.confirmed_unix_s = 1000.0
        after = values(metrics.page())
    assert (after["shoal_snapshot_refused_total"], after["shoal_snapshot_age_seconds"]) == (1, 30)


def test_metrics_show_whether_and_when_heartbeats_reached_the_bus() -> None:
    now_s = [100.0]
    link = BusLink(lambda: now_s[0])
    metrics = AgentMetrics(make_status(), HeartbeatCounts())
    metrics.watch_bus(link)
    told = []
    for after_s, is_up in ((5.0, True), (7.0, True), (2.0, False), (30.0, False)):
        now_s[0] += after_s
        link.set(is_up)
        page = values(metrics.page())
        told.append((page["shoal_bus_up"], page["shoal_bus_state_seconds"]))
    assert told == [(1, 0), (1, 7), (0, 0), (0, 30)]
