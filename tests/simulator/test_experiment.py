"""Routers side by side: capacity of a fleet, cells by load and router, and traces replayed at a rate."""

from dataclasses import replace
from typing import Any

import pytest

from functions.simulator.experiment import (
    IN_TIME_RATIO,
    Chats,
    FleetTooSlow,
    RecordedWorkload,
    capacity_per_s,
    compare,
    in_time_ratio,
    oracle,
)
from functions.simulator.fleet.engine_profile import PROFILES
from functions.simulator.fleet.setting import Setting
from functions.simulator.fleet.simulation import SLO_S, simulate
from functions.simulator.workload.synthetic import BLOCK_TOKENS, Traffic
from functions.simulator.workload.traces import TraceUnreadable

SETTING = Setting(replicas=4, profile=PROFILES["h100-8b"], block_tokens=BLOCK_TOKENS)
CHATS = Chats(Traffic(requests_per_s=1.0, seconds=1.0), requests=300)


@pytest.mark.soak
def test_capacity_is_the_rate_that_the_oracle_serves_in_time() -> None:
    capacity = capacity_per_s(replace(SETTING, replicas=2), CHATS, seed=0)
    twice = capacity_per_s(SETTING, CHATS, seed=0)
    assert 1.3 < twice / capacity < 3.0
    best = replace(SETTING, replicas=2, router=oracle, admission=None)
    shares = [in_time_ratio(simulate(best, CHATS.at_rate(ratio * capacity, 0)), SLO_S) for ratio in (0.5, 1.0, 2.0)]
    assert shares[0] >= shares[1] >= IN_TIME_RATIO > shares[2]


@pytest.mark.soak
def test_fleet_below_one_request_a_second_has_a_capacity() -> None:
    slow = replace(SETTING, replicas=1, profile=replace(SETTING.profile, prefill_ms_per_token=2.0))
    few = replace(CHATS, requests=60)
    assert 0.02 < capacity_per_s(slow, few, seed=0, slo_s=6.0) < 1.0
    with pytest.raises(FleetTooSlow, match=r"within 0\.5 s"):
        capacity_per_s(slow, few, seed=0, slo_s=0.5)


@pytest.mark.soak
def test_cells_are_ordered_by_load_and_router_with_a_run_per_seed() -> None:
    said: list[str] = []
    capacity, cells = compare(
        SETTING, CHATS, routers={"shoal": None, "omniscient": oracle}, loads=[0.4, 0.8], seeds=2, progress=said.append
    )
    assert [(cell.router, cell.load_ratio) for cell in cells] == [
        ("shoal", 0.4), ("omniscient", 0.4), ("shoal", 0.8), ("omniscient", 0.8),
    ]  # fmt: skip
    assert all(len(cell.runs) == 2 for cell in cells)
    assert cells[0].requests_per_s == pytest.approx(0.4 * capacity)
    slowest = cells[0].each("bands", "interactive", "ttft_p99_ms")
    assert min(slowest) <= (cells[0].middle("bands", "interactive", "ttft_p99_ms") or 0.0) <= max(slowest)
    assert cells[0].middle("bands", "batch", "ttft_p99_ms") is None
    assert said[-1] == "omniscient at 80%, seed 2 of 2"


def test_trace_is_replayed_at_the_requested_rate_in_windows(tmp_path: Any) -> None:
    path = tmp_path / "trace.jsonl"
    rows = (f'{{"timestamp": {n * 1000}, "input_length": {n + 1}, "output_length": 1}}\n' for n in range(100))
    path.write_text("".join(rows))
    recorded = RecordedWorkload(path, requests=20, seeds=3)
    windows = [list(recorded.at_rate(10.0, seed)) for seed in range(3)]
    assert [window[0].prompt_tokens for window in windows] == [1, 41, 81]
    assert all(window[0].at_s == 0.0 and window[-1].at_s == pytest.approx(1.9, abs=0.2) for window in windows)
    path.write_text('{"timestamp": 1, "input_length": 1, "output_length": 1}\n')
    with pytest.raises(TraceUnreadable, match="fewer than two"):
        list(recorded.at_rate(1.0, 0))
