from dataclasses import replace
from math import inf

import pytest

from functions.api.ids import ReplicaId, TenantId
from functions.decisions.admission.gate import Gate, learnt_slots, with_bursts
from functions.decisions.admission.ticket import Flow, Ticket
from functions.decisions.routing.replicas import ReplicaView
from tests.decisions.routing.test_routing import replica

SLO_S = 0.5


def beat(name: str = "r0", running: int = 0, waiting: int = 0, kv: float = 0.0, capacity: int = 10_000) -> ReplicaView:
    view = replica(name, running=running, waiting=waiting, kv_usage_ratio=kv, kv_capacity_tokens=capacity)
    return replace(view, id=ReplicaId(name), prefill_ms_per_token=0.05)


def ticket(kv_tokens: int = 100) -> Ticket:
    return Ticket(1, TenantId("a"), 1.0, 0, kv_tokens, kv_tokens, kv_tokens, 99.0, 0.0)


def hold(gate: Gate, requests: int, kv_tokens: int) -> None:
    gate.running += requests
    gate.kv_tokens += kv_tokens


def test_worked_example_of_slots() -> None:
    assert learnt_slots(None, 32, 9, limited=False) == 34
    assert learnt_slots(34.0, 33, 0, limited=True) == pytest.approx(43.5)
    assert learnt_slots(34.0, 33, 1, limited=True) == 34


def test_slots_are_not_learned_from_a_short_queue() -> None:
    assert learnt_slots(None, 100, 8, limited=False) is None
    assert learnt_slots(20.0, 5, 0, limited=False) == 20


def test_unknown_limits_do_not_apply() -> None:
    gate = Gate(0.0)
    hold(gate, 1000, 10**9)
    assert gate.has_capacity(ticket(), reads_less_than_its_part=False)
    gate.update_capacity([beat(capacity=0)], SLO_S, 1.0)
    assert gate.kv_limit_tokens == inf and gate.request_limit == inf
    assert gate.has_capacity(ticket(), reads_less_than_its_part=False)


def test_unknown_prefill_rate_sets_no_prefill_limit() -> None:
    gate = Gate(0.0)
    gate.update_capacity([replace(beat(), prefill_ms_per_token=0.0)], SLO_S, 1.0)
    assert gate.window.per_replica_tokens == inf and gate.has_capacity(ticket(), reads_less_than_its_part=False)


def test_kv_blocks_limit_what_may_run() -> None:
    gate = Gate(0.0)
    gate.update_capacity([beat("r0"), beat("r1")], SLO_S, 1.0)
    assert gate.kv_limit_tokens == pytest.approx(18_000)
    hold(gate, 5, 17_950)
    assert not gate.has_capacity(ticket(100), reads_less_than_its_part=True)
    assert gate.has_capacity(ticket(50), reads_less_than_its_part=True)


def test_a_pool_always_takes_one_request() -> None:
    gate = Gate(0.0)
    gate.update_capacity([beat()], SLO_S, 1.0)
    assert gate.has_capacity(ticket(10**6), reads_less_than_its_part=False)


def test_replica_without_reported_capacity_counts_as_average() -> None:
    gate = Gate(0.0)
    gate.update_capacity([beat("r0"), beat("r1", capacity=0)], SLO_S, 1.0)
    assert gate.kv_limit_tokens == pytest.approx(18_000)


def test_a_long_queue_at_an_engine_closes_the_gate() -> None:
    gate = Gate(0.0)
    hold(gate, 30, 300)
    gate.update_capacity([beat(running=16, waiting=14)], SLO_S, 1.0)
    assert gate.request_limit == 18
    assert not gate.has_capacity(ticket(), reads_less_than_its_part=True)


def test_one_replicas_long_queue_does_not_close_a_whole_pool() -> None:
    gate = Gate(0.0)
    hold(gate, 60, 300)
    gate.update_capacity([beat("r0", running=3, waiting=9), beat("r1", running=20), beat("r2", running=20)], SLO_S, 1.0)
    assert gate.request_limit == inf
    gate.update_capacity([beat("r0", running=3, waiting=9), beat("r1", running=20, waiting=5), beat("r2")], SLO_S, 2.0)
    assert gate.request_limit == pytest.approx((5 + 22) * 1.5)


def test_foreign_load_is_the_minimum_of_three_heartbeats_less_own_requests() -> None:
    gate = Gate(0.0)
    hold(gate, 10, 1_000)
    for second, (running, kv) in enumerate([(25, 0.5), (14, 0.2), (30, 0.9)]):
        gate.update_capacity([beat(running=running, kv=kv)], SLO_S, 1.0 + second)
    assert gate.kv_limit_tokens == pytest.approx(9_000 - 1_000)


def test_own_requests_ended_since_the_heartbeat_are_not_foreign_load() -> None:
    gate = Gate(0.0)
    hold(gate, 10, 5_000)
    gate.update_capacity([beat(running=10, kv=0.4)], SLO_S, 1.0)
    hold(gate, -8, -4_000)
    gate.update_capacity([beat(running=9, kv=0.4)], SLO_S, 2.0)
    assert gate.kv_limit_tokens == pytest.approx(9_000)


def test_running_prefills_close_the_gate_except_for_small_shares() -> None:
    gate = Gate(0.0)
    gate.update_capacity([beat()], SLO_S, 1.0)
    assert gate.reading_limit_tokens == pytest.approx(2_500)
    hold(gate, 1, 100)
    gate.reading_tokens = 2_600
    assert not gate.has_capacity(ticket(), reads_less_than_its_part=False)
    assert gate.has_capacity(ticket(), reads_less_than_its_part=True)
    gate.reading_tokens = 5_000
    assert not gate.has_capacity(ticket(), reads_less_than_its_part=True)


def test_gate_is_open_without_ready_replicas() -> None:
    gate = Gate(0.0)
    gate.update_capacity([beat()], SLO_S, 1.0)
    hold(gate, 100, 10**6)
    gate.update_capacity([], SLO_S, 1.2)
    assert gate.has_capacity(ticket(), reads_less_than_its_part=False)


def test_worked_example_of_lending_after_a_crowd() -> None:
    gate = Gate(0.0)
    assert gate.is_lending(100.0)
    for crowded_s, until_s in ((100.0, 110.0), (115.0, 135.0), (140.0, 180.0), (181.0, 261.0)):
        gate.note_crowding(crowded_s)
        assert not gate.is_lending(until_s)
        assert gate.is_lending(until_s + 0.1)
    gate.note_crowding(261.0 + 301.0)
    assert gate.is_lending(572.1)


def test_long_crowding_is_remembered_for_the_normal_time() -> None:
    gate = Gate(0.0)
    for second in range(100, 150):
        gate.note_crowding(float(second))
    assert not gate.is_lending(158.9) and gate.is_lending(159.1)


def test_worked_example_of_bursts() -> None:
    assert with_bursts(0.1, 1 / 512) == pytest.approx(0.128, abs=0.0005)
    assert with_bursts(0.1, 0.125) == 0.1
    assert with_bursts(0.01, 0.005) == 0.02, "never more than twice a part"
    assert with_bursts(0.5, 0.2) == 0.6, "nor more than a tenth of the pool above it"


def test_one_of_many_tenants_may_burst_small_requests_but_no_second_large_one() -> None:
    gate = Gate(0.0)
    gate.update_capacity([beat(capacity=100_000)], SLO_S, 1.0)
    gate.note_crowding(1.0)
    small, large = ticket(100), ticket(20_000)
    bursty, noisy = Flow(TenantId("bursty"), 1.0), Flow(TenantId("noisy"), 1.0)
    bursty.running = noisy.running = 1
    bursty.kv_tokens = noisy.kv_tokens = 9_500  # a tenant's share is 9,000 of 90,000
    assert not gate.holds_full_share(bursty, small, 0.1, 1.5)
    assert gate.holds_full_share(noisy, large, 0.1, 1.5)
    bursty.kv_tokens = 18_500  # twice its share
    assert gate.holds_full_share(bursty, small, 0.1, 1.5)


def test_lent_capacity_admits_small_requests_but_no_second_large_one() -> None:
    gate = Gate(0.0)
    gate.update_capacity([beat(capacity=100_000)], SLO_S, 1.0)
    flow = Flow(TenantId("noisy"), 1.0)
    flow.running, flow.kv_tokens = 1, 20_000  # twice its share, and less than a quarter of 90,000
    small, large = ticket(100), ticket(10_000)
    assert not gate.holds_full_share(flow, small, 0.1, 1.5)
    assert gate.holds_full_share(flow, large, 0.1, 1.5)
    gate.note_crowding(2.0)
    assert gate.holds_full_share(flow, small, 0.1, 2.5)


def test_long_prompts_of_one_tenant_prefill_one_at_a_time_although_the_window_grows() -> None:
    gate = Gate(0.0)
    gate.update_capacity([beat("r0", capacity=100_000), beat("r1", capacity=100_000)], SLO_S, 1.0)
    flow = Flow(TenantId("noisy"), 1.0)
    flow.running, flow.reading_tokens = 1, 50  # a replica's whole window at dispatch
    assert gate.holds_full_share(flow, ticket(10_000), 0.1, 1.5)
    flow.reading_tokens = 0
    assert not gate.holds_full_share(flow, ticket(10_000), 0.1, 1.5)
