"""A pool in virtual time: nothing lost, the same each time, and overload refused instead of waited out."""

from dataclasses import replace
from typing import Any

import pytest

from functions.decisions.baselines import RouterName
from functions.simulator.experiment import Chats, Recorded, capacity_per_s, compare
from functions.simulator.fleet.engine_profile import PROFILES
from functions.simulator.fleet.outcome import Outcome
from functions.simulator.fleet.simulation import Setting, simulate
from functions.simulator.workload.synthetic import BLOCK_TOKENS, Traffic, synthetic
from functions.simulator.workload.traces import TraceUnreadable

SETTING = Setting(replicas=4, profile=PROFILES["h100-8b"], block_tokens=BLOCK_TOKENS)


def run(per_s: float, seconds: float = 60.0, seed: int = 1, **changes: Any) -> Outcome:
    traffic = Traffic(requests_per_s=per_s, seconds=seconds)
    return simulate(replace(SETTING, **changes), synthetic(traffic, seed))


@pytest.mark.parametrize("router", ["shoal", "cache-aware", "least-loaded", "round-robin"])
@pytest.mark.parametrize("gateways", [1, 3])
@pytest.mark.parametrize("per_s", [4.0, 100.0])
def test_each_request_is_served_once_or_shed_once(router: RouterName, gateways: int, per_s: float) -> None:
    outcome = run(per_s, 20.0, router=router, gateways=gateways)
    asked = sum(1 for _ in synthetic(Traffic(requests_per_s=per_s, seconds=20.0), 1))
    (interactive,) = (band for band in outcome.bands if band.asked)
    assert interactive.asked == asked
    assert interactive.served + sum(interactive.shed.values()) == asked
    assert interactive.ttft.count == interactive.served
    assert sum(outcome.routes.values()) == interactive.served


def test_the_same_seed_gives_the_same_figures() -> None:
    assert run(20.0).figures() == run(20.0).figures() != run(20.0, seed=2).figures()


def test_at_low_load_nothing_waits_and_a_first_token_takes_its_prefill() -> None:
    interactive = run(1.0, 120.0).bands[0]
    assert not interactive.shed
    assert interactive.queued.quantile(0.99) == pytest.approx(0.01, abs=0.01)
    profile = SETTING.profile
    shortest_ms = profile.step_ms + 1 * profile.prefill_ms_per_token
    p50_ms = interactive.ttft.quantile(0.5)
    assert p50_ms is not None
    assert shortest_ms < p50_ms < profile.step_ms + 1500 * profile.prefill_ms_per_token


def test_overload_is_refused_and_without_a_waiting_room_it_is_waited_out() -> None:
    with_room, without = run(150.0, 30.0).bands[0], run(150.0, 30.0, admission=None).bands[0]
    assert sum(with_room.shed.values()) > 0.2 * with_room.asked
    assert not without.shed
    slowest, waited_out = with_room.ttft.quantile(0.99), without.ttft.quantile(0.99)
    assert slowest is not None
    assert waited_out is not None
    assert slowest < waited_out / 2


def test_a_router_that_knows_of_caches_finds_more_in_them() -> None:
    hits = {router: run(12.0, router=router).figures()["hit_ratio"] for router in ("shoal", "round-robin")}
    assert hits["shoal"] > hits["round-robin"] + 0.1


CHATS = Chats(Traffic(requests_per_s=1.0, seconds=1.0), requests=600)


def test_capacity_is_what_the_fleet_keeps_up_with() -> None:
    capacity = capacity_per_s(replace(SETTING, replicas=2), CHATS, seed=0)
    twice = capacity_per_s(SETTING, CHATS, seed=0)
    assert 1.3 < twice / capacity < 3.0
    plain = replace(SETTING, replicas=2, router="least-loaded", admission=None)
    slow = [simulate(plain, CHATS.at_rate(ratio * capacity, 0)).bands[0].ttft.quantile(0.99) for ratio in (0.5, 2.0)]
    assert slow[0] is not None
    assert slow[1] is not None
    assert slow[1] > 4 * slow[0]


def test_a_fleet_that_cannot_do_one_request_a_second_has_a_capacity_too() -> None:
    slow = replace(SETTING.profile, prefill_ms_per_token=50.0)
    capacity = capacity_per_s(replace(SETTING, replicas=1, profile=slow), replace(CHATS, requests=100), seed=0)
    assert 0.002 < capacity < 0.5


def test_cells_come_by_load_and_router_with_a_run_for_each_seed() -> None:
    said: list[str] = []
    capacity, cells = compare(
        SETTING, CHATS, routers=["shoal", "round-robin"], loads=[0.4, 0.8], seeds=2, progress=said.append
    )
    assert [(cell.router, cell.load_ratio) for cell in cells] == [
        ("shoal", 0.4), ("round-robin", 0.4), ("shoal", 0.8), ("round-robin", 0.8),
    ]  # fmt: skip
    assert all(len(cell.runs) == 2 for cell in cells)
    assert cells[0].requests_per_s == pytest.approx(0.4 * capacity)
    slowest = cells[0].each("bands", "interactive", "ttft_p99_ms")
    assert min(slowest) <= (cells[0].middle("bands", "interactive", "ttft_p99_ms") or 0.0) <= max(slowest)
    assert cells[0].middle("bands", "batch", "ttft_p99_ms") is None
    assert said[-1] == "round-robin at 80%, seed 2 of 2"


def test_a_trace_is_played_at_the_rate_asked_for_in_windows(tmp_path: Any) -> None:
    path = tmp_path / "trace.jsonl"
    rows = (f'{{"timestamp": {n * 1000}, "input_length": {n + 1}, "output_length": 1}}\n' for n in range(100))
    path.write_text("".join(rows))
    recorded = Recorded(path, requests=20, seeds=3)
    windows = [list(recorded.at_rate(10.0, seed)) for seed in range(3)]
    assert [window[0].prompt_tokens for window in windows] == [1, 41, 81]
    assert all(window[0].at_s == 0.0 and window[-1].at_s == pytest.approx(1.9, abs=0.2) for window in windows)
    path.write_text('{"timestamp": 1, "input_length": 1, "output_length": 1}\n')
    with pytest.raises(TraceUnreadable, match="fewer than two"):
        list(recorded.at_rate(1.0, 0))
