"""Traffic of both sides of a plan: the same requests, at a stated rate, for existing pools and tenants."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from functions.api.ids import TenantId
from functions.api.snapshot import QuotaEntry, QuotaLimitsPart
from functions.simulator.fleet.engine_profile import PROFILES
from functions.simulator.plan.entry import Entry
from functions.simulator.plan.pace import Load, request_work_s, rushed, shares_of
from functions.simulator.plan.planned_fleet import PlannedFleet, PlannedPool
from functions.simulator.plan.settings import Beginning, initial_replicas
from functions.simulator.plan.traffic import PlanTraffic, foreign, made_up, recorded
from functions.simulator.workload.request import WorkloadRequest
from functions.simulator.workload.traces import TraceUnreadable
from functions.telemetry.trace_row import encode
from tests.simulator.plan.prepared import planned, written
from tests.telemetry.test_traces import row

ANYBODY = TenantId("anybody")
TENANTS = (TenantId("acme"), TenantId("globex"))


@pytest.fixture
def fleet(tmp_path: Path) -> PlannedFleet:
    return planned(written(tmp_path / "fleet"))


def request_rows(traffic: PlanTraffic, window: int) -> list[tuple[object, ...]]:
    return [(each.at_s, each.pool, each.tenant, each.prompt_tokens, each.blocks) for each in traffic.requests(window)]


def azure(path: Path, count: int) -> Path:
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"2023-11-16 18:{each // 60:02d}:{each % 60:02d}.0000000,{100 + each},10" for each in range(count)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rate_is_a_share_of_the_replicas_capacity(fleet: PlannedFleet) -> None:
    """A replica of h100-8b serves 4.5 requests of 1,000 and 200 tokens a second; its steps add little."""
    sample = [WorkloadRequest(float(each), ANYBODY, 1000, 200) for each in range(10)]
    work_s = request_work_s(PROFILES["h100-8b"], sample, 64)
    assert work_s == pytest.approx(0.221 + 200 * 0.010 / 256, abs=0.001)
    chat = fleet.pool("chat-8b")
    assert chat is not None
    (half,), (whole,) = (shares_of([chat], sample, 64, Load().for_others(load)) for load in (0.5, 1.0))
    assert whole.requests_per_s == pytest.approx(2 * half.requests_per_s)
    assert whole.requests_per_s == pytest.approx(8 / request_work_s(chat.engine.profile, sample, 64))


def test_cached_prompts_cost_little_work() -> None:
    profile = PROFILES["h100-8b"]
    fresh = [
        WorkloadRequest(float(each), ANYBODY, 640, 1, blocks=tuple(range(100 * each, 100 * each + 10)))
        for each in range(20)
    ]
    again = [WorkloadRequest(float(each), ANYBODY, 640, 1, blocks=tuple(range(10))) for each in range(20)]
    assert request_work_s(profile, again, 64) < request_work_s(profile, fresh, 64) / 5


def test_a_load_is_for_all_pools_or_for_one() -> None:
    load = Load().for_others(0.4).of("large", 1.1)
    assert (load.at("small"), load.at("large")) == (0.4, 1.1)


def test_rush_is_in_the_middle_and_keeps_all_requests() -> None:
    parts = [each / 999 for each in range(1000)]
    moved = [rushed(part) for part in parts]
    assert all(first < second for first, second in pairwise(moved))
    assert (moved[0], moved[-1]) == (0.0, pytest.approx(1.0))
    middle = sum(1 / 3 <= each < 2 / 3 for each in moved)
    assert middle == pytest.approx(1000 * 1.3 / 3, abs=2)


def test_generated_traffic_is_marked_and_reproducible(fleet: PlannedFleet) -> None:
    traffic = made_up(fleet.generating, TENANTS, Load(), windows=3, requests=400)
    assert traffic.words.startswith("MADE UP")
    assert request_rows(traffic, 1) == request_rows(traffic, 1) != request_rows(traffic, 2)
    first = list(traffic.requests(0))
    assert len(first) == pytest.approx(400, rel=0.25)
    assert [each.at_s for each in first] == sorted(each.at_s for each in first)
    assert {each.pool for each in first} == {"chat-8b", "large-32b"}
    assert {each.tenant for each in first} == set(TENANTS)
    blocks = {
        pool: {b for each in first if each.pool == pool for b in each.blocks} for pool in ("chat-8b", "large-32b")
    }
    assert not blocks["chat-8b"] & blocks["large-32b"]


def test_generated_chats_fit_the_context_window(fleet: PlannedFleet) -> None:
    narrow = tuple(
        replace(pool, entry=msgspec.structs.replace(pool.entry, context_window_tokens=2048))
        for pool in fleet.generating
    )
    traffic = made_up(narrow, TENANTS, Load(), windows=1, requests=400)
    lengths = [each.prompt_tokens for each in traffic.requests(0)]
    assert sum(length < 2048 for length in lengths) > 0.99 * len(lengths)
    assert sum(lengths) / len(lengths) > 64


def test_foreign_trace_is_scaled_to_a_share_of_the_fleets_capacity(fleet: PlannedFleet, tmp_path: Path) -> None:
    path = azure(tmp_path / "trace.csv", 600)
    traffic = foreign(path, fleet.generating, TENANTS, Load().for_others(0.5), windows=3, requests=200)
    windows = [list(traffic.requests(window)) for window in range(3)]
    assert [len(window) for window in windows] == [200, 200, 200]
    assert [window[0].prompt_tokens for window in windows] == [100, 300, 500]  # evenly spread over the trace
    assert all(window[0].at_s == 0.0 for window in windows)
    rate = sum(share.requests_per_s for share in traffic.shares)
    assert 199 / windows[0][-1].at_s == pytest.approx(rate, rel=0.02)
    counts = Counter(each.pool for window in windows for each in window)
    expected = {share.pool.name: share.requests_per_s / rate for share in traffic.shares}
    assert counts["chat-8b"] / 600 == pytest.approx(expected["chat-8b"], abs=0.08)
    assert {each.tenant for each in windows[0]} == set(TENANTS)


def test_short_trace_uses_windows_of_six_tenths(fleet: PlannedFleet, tmp_path: Path) -> None:
    traffic = foreign(azure(tmp_path / "t.csv", 100), fleet.generating, TENANTS, Load(), windows=2, requests=4000)
    first, last = (list(traffic.requests(window)) for window in range(2))
    assert [each.prompt_tokens for each in first] == list(range(100, 160))
    assert [each.prompt_tokens for each in last] == list(range(140, 200))


def test_own_traces_are_replayed_as_recorded(tmp_path: Path) -> None:
    rows = [
        row(f"r{each}", ts=1e9 + each, tenant_id="acme", pool="chat-8b", prompt_tokens=50, session_id="")
        for each in range(100)
    ]
    (tmp_path / "requests-1.ndjson").write_bytes(b"".join(encode(each) + b"\n" for each in rows))
    traffic = recorded(tmp_path, windows=2, requests=1000)
    found = list(traffic.requests(1))
    assert (traffic.kind, traffic.total, len(found)) == ("recorded", 100, 60)
    assert (found[0].tenant, found[0].pool, found[1].at_s) == ("acme", "chat-8b", 1.0)


def test_empty_own_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "requests-1.ndjson").write_bytes(b"")
    with pytest.raises(TraceUnreadable, match="fewer than two"):
        recorded(tmp_path, windows=2, requests=10)


def small(fleet: PlannedFleet, **limits: int) -> PlannedFleet:
    quota = QuotaEntry(name="standard", limits=QuotaLimitsPart(**limits))
    return PlannedFleet(fleet.pools, {TenantId("acme"): quota})


def workload_request(prompt: int, output: int, pool: str = "chat-8b") -> WorkloadRequest:
    return WorkloadRequest(0.0, TenantId("acme"), prompt, output, pool=pool)


def test_requests_that_a_gateway_would_reject_are_excluded(fleet: PlannedFleet) -> None:
    entry = Entry(small(fleet, max_context_tokens=1000, max_output_tokens=50), is_own=True)
    found = list(
        entry.entering(
            [
                workload_request(500, 100),
                workload_request(2000, 100),
                workload_request(40_000, 1),
                workload_request(1, 1, pool="gone"),
            ]
        )
    )
    assert [(each.prompt_tokens, each.output_tokens) for each in found] == [(500, 50)]
    assert (entry.too_long["chat-8b", 0], entry.no_pool["gone", 0]) == (2, 1)
    foreign_entry = Entry(small(fleet, max_context_tokens=1000), is_own=False)
    (only,) = foreign_entry.entering([workload_request(32_700, 500)])
    assert only.output_tokens == 68  # the context window ends there


def test_initial_replicas_follow_the_first_minutes(fleet: PlannedFleet) -> None:
    chat = fleet.pool("chat-8b")
    assert isinstance(chat, PlannedPool)
    work_s = request_work_s(chat.engine.profile, [workload_request(1000, 200)], 64)
    rows = [WorkloadRequest(each * work_s / 5.5, ANYBODY, 1000, 200, pool="chat-8b") for each in range(200)]
    beginning = Beginning.of(rows)
    assert initial_replicas(chat, beginning, 64) == 8  # 5.5 at full work, 7.3 at 75 %
    assert initial_replicas(chat, Beginning.of(rows[:1]), 64) == chat.least
    large = fleet.pool("large-32b")
    assert large is not None
    assert initial_replicas(large, beginning, 64) == 2
