"""Routing: the least predicted time to first token, among those that can answer at all."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.api.snapshot import RoutingEntry
from functions.decisions.routing import NoReplica, PoolView, Prediction, ReplicaView, RouteRequest, decide, predict

POOL = PoolName("base")
POLICY = RoutingEntry("default", ("*",))  # c = 1.25
ADAPTER = EngineName("acme/bot@sha256:1")
REQUEST = RouteRequest(EngineName("base"), is_adapter=False, prompt_tokens=200, tie_key="request-1")


def replica(name: str, **changes: object) -> ReplicaView:
    view = ReplicaView(
        id=ReplicaId(name),
        pool=POOL,
        host="127.0.0.1",
        port=8460,
        phase="ready",
        running=0,
        waiting=0,
        kv_usage_ratio=0.0,
        adapters=frozenset(),
        service_ms=50.0,
        prefill_ms_per_token=0.5,
    )
    return replace(view, **changes)  # type: ignore[arg-type]


def pool(*replicas: ReplicaView) -> PoolView:
    return PoolView(POOL, replicas)


def chosen(decision: Prediction | NoReplica) -> str:
    assert isinstance(decision, Prediction)
    return decision.replica.id


def test_worked_example_from_the_prologue() -> None:
    a = replica("a", running=2, waiting=1, service_ms=40.0, prefill_ms_per_token=0.5)
    b = replica("b", running=1, service_ms=90.0, prefill_ms_per_token=1.0)
    assert (predict(REQUEST, a, 0).total_ms, predict(REQUEST, b, 0).total_ms) == (220.0, 290.0)
    decision = decide(REQUEST, pool(a, b), POLICY, {})
    assert chosen(decision) == "a"
    assert isinstance(decision, Prediction)
    assert (decision.queue_ms, decision.prefill_ms) == (120.0, 100.0)


def test_no_replica_gets_more_than_its_share() -> None:
    fast, slow = replica("fast", service_ms=10.0), replica("slow", service_ms=100.0)
    assert chosen(decide(REQUEST, pool(fast, slow), POLICY, {fast.id: 4, slow.id: 3})) == "fast"
    assert chosen(decide(REQUEST, pool(fast, slow), POLICY, {fast.id: 10, slow.id: 2})) == "slow"


def test_the_policy_says_how_far_above_the_mean() -> None:
    fast, slow = replica("fast", service_ms=10.0), replica("slow", service_ms=100.0)
    outstanding = {fast.id: 10, slow.id: 2}
    generous = RoutingEntry("default", ("*",), bounded_load=2.0)
    assert chosen(decide(REQUEST, pool(fast, slow), POLICY, outstanding)) == "slow"  # a share of 9
    assert chosen(decide(REQUEST, pool(fast, slow), generous, outstanding)) == "fast"  # a share of 13


@given(st.lists(st.tuples(st.integers(0, 300), st.floats(1.0, 1000.0)), min_size=1, max_size=12))
def test_the_bound_always_leaves_somebody_and_nobody_far_above_the_mean(loads: list[tuple[int, float]]) -> None:
    replicas = [replica(f"r{number}", running=load, service_ms=ms) for number, (load, ms) in enumerate(loads)]
    decision = decide(REQUEST, pool(*replicas), POLICY, {})
    assert isinstance(decision, Prediction)
    mean = (sum(load for load, _ in loads) + 1) / len(loads)
    assert decision.replica.running <= 1.25 * mean


def test_what_was_sent_since_the_last_beat_counts() -> None:
    a, b = replica("a"), replica("b", running=2)
    assert chosen(decide(REQUEST, pool(a, b), POLICY, {})) == "a"
    assert chosen(decide(REQUEST, pool(a, b), POLICY, {ReplicaId("a"): 3})) == "b"


def test_own_requests_that_the_beat_already_reports_are_not_counted_twice() -> None:
    assert predict(REQUEST, replica("a", running=3), 3).queue_ms == 150.0


@pytest.mark.parametrize("phase", ["starting", "draining", "hung", "dead"])
def test_only_ready_replicas_answer(phase: str) -> None:
    assert chosen(decide(REQUEST, pool(replica("a", phase=phase), replica("b", running=9)), POLICY, {})) == "b"
    assert decide(REQUEST, pool(replica("a", phase=phase)), POLICY, {}) == NoReplica("no_replica_ready")


def test_only_replicas_with_the_adapter_answer_for_it() -> None:
    request = replace(REQUEST, engine_name=ADAPTER, is_adapter=True)
    idle, busy = replica("a"), replica("b", running=9, adapters=frozenset({ADAPTER}))
    assert chosen(decide(request, pool(idle, busy), POLICY, {})) == "b"
    assert decide(request, pool(idle), POLICY, {}) == NoReplica("adapter_not_loaded")


def test_each_reason_for_nobody_is_told_apart() -> None:
    a = replica("a")
    assert decide(REQUEST, pool(), POLICY, {}) == NoReplica("pool_empty")
    assert decide(REQUEST, pool(a), POLICY, {}, excluded=[a.id]) == NoReplica("all_tried")


def test_an_excluded_replica_is_not_asked_again() -> None:
    assert (
        chosen(decide(REQUEST, pool(replica("a"), replica("b", running=9)), POLICY, {}, excluded=[ReplicaId("a")]))
        == "b"
    )


def test_ties_are_spread_over_replicas_by_request() -> None:
    views = pool(*(replica(f"r{n}") for n in range(4)))
    counts: dict[str, int] = {}
    for number in range(400):
        winner = chosen(decide(replace(REQUEST, tie_key=f"request-{number}"), views, POLICY, {}))
        counts[winner] = counts.get(winner, 0) + 1
    assert set(counts) == {"r0", "r1", "r2", "r3"}
    assert min(counts.values()) > 60


loads = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8)


@settings(deadline=None)
@given(loads, st.integers(0, 1000), st.randoms(use_true_random=False))
def test_the_order_in_which_replicas_were_learnt_decides_nothing(
    outstanding: list[tuple[int, int]], tokens: int, rng: random.Random
) -> None:
    views = [replica(f"r{n}", running=running, waiting=waiting) for n, (running, waiting) in enumerate(outstanding)]
    shuffled = rng.sample(views, len(views))
    request = replace(REQUEST, prompt_tokens=tokens)
    assert decide(request, pool(*views), POLICY, {}) == decide(request, pool(*shuffled), POLICY, {})


@settings(deadline=None)
@given(loads, st.dictionaries(st.sampled_from([f"r{n}" for n in range(8)]), st.integers(0, 9)))
def test_nobody_is_predicted_faster_than_the_one_chosen(
    outstanding: list[tuple[int, int]], in_flight: dict[str, int]
) -> None:
    views = [replica(f"r{n}", running=running, waiting=waiting) for n, (running, waiting) in enumerate(outstanding)]
    own = {ReplicaId(name): count for name, count in in_flight.items()}
    decision = decide(REQUEST, pool(*views), POLICY, own)
    assert isinstance(decision, Prediction)
    assert decision.total_ms == min(predict(REQUEST, view, own.get(view.id, 0)).total_ms for view in views)
