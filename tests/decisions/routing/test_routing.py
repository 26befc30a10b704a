"""Routing: the replica with the least score among those that can answer; the optimized loop equals the formula."""

import random
from dataclasses import replace
from math import isclose

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.api.snapshot import RoutingEntry
from functions.decisions.routing.choice import (
    SLACK,
    NoReplica,
    PoolIndex,
    PoolView,
    Prediction,
    ReplicaView,
    RouteRequest,
    decide,
    predict,
    route,
)
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.prediction import (
    BEHIND,
    CROSS_ZONE_MS,
    KV_FULL_RATIO,
    SESSION_CREDIT_MS,
    kept_ratio,
    least,
    score_ms,
)

POOL = PoolName("base")
POLICY = RoutingEntry("default", ("*",))  # c = 1.25
ADAPTER = EngineName("acme/bot@sha256:1")
REQUEST = RouteRequest(EngineName("base"), is_adapter=False, prompt_tokens=200, tie_key="request-1")
SHORT = msgspec.structs.replace(REQUEST, prompt_tokens=5)
A, B = ReplicaId("a"), ReplicaId("b")


def request_with(**changes: object) -> RouteRequest:
    return msgspec.structs.replace(REQUEST, **changes)


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


def load_of(in_flight: dict[str, int] | None = None, ahead: dict[str, int] | None = None) -> OwnLoad:
    load = OwnLoad({ReplicaId(name): count for name, count in (in_flight or {}).items()})
    load.ahead_tokens.update({ReplicaId(name): tokens for name, tokens in (ahead or {}).items()})
    return load


def routed(request: RouteRequest, *replicas: ReplicaView, load: OwnLoad | None = None, **more: object) -> Prediction:
    policy = more.pop("policy", POLICY)
    assert isinstance(policy, RoutingEntry)
    decision = route(request, PoolIndex(replicas), policy, load or OwnLoad(), **more)  # type: ignore[arg-type]
    assert isinstance(decision, Prediction)
    return decision


def test_worked_example_from_the_prologue() -> None:
    a, b = replica("a", running=20, service_ms=40.0), replica("b", running=10, service_ms=40.0)
    request = request_with(prompt_tokens=800, cached_tokens={A: 600})
    load = load_of({"a": 1}, {"a": 1000})
    assert predict(request, a, load).total_ms == 500 + 40 + 100
    assert predict(request, b, load).total_ms == 20 + 400
    assert score_ms(request, a, load, 1.0, {}) == 640 - BEHIND * 300
    found = routed(request, a, b, load=load)
    assert (found.replica.id, found.reason, found.cached_tokens) == ("a", "prefix", 600)
    assert (found.queue_ms, found.prefill_ms) == (540.0, 100.0)
    assert score_ms(request, b, load, 1.0, {}) == 420 + 400 * 10 / 20
    assert routed(request, a, b, load=load_of({"a": 3}, {"a": 3000})).replica.id == "b"


def test_long_prompts_prefer_replicas_with_few_streams() -> None:
    few, many = replica("few", running=2, service_ms=400.0), replica("many", running=30, service_ms=5.0)
    load = load_of({"few": 2, "many": 30})
    generous = RoutingEntry("generous", ("*",), bounded_load=10.0)
    short, long = request_with(prompt_tokens=20), request_with(prompt_tokens=32_000)
    assert routed(short, few, many, load=load, policy=generous).replica.id == "many"
    assert routed(long, few, many, load=load, policy=generous).replica.id == "few"


def test_no_replica_gets_more_than_its_share() -> None:
    fast, slow = replica("fast", service_ms=10.0), replica("slow", service_ms=100.0)
    assert chosen(decide(SHORT, pool(fast, slow), POLICY, {fast.id: 15, slow.id: 2})) == "fast"
    assert chosen(decide(SHORT, pool(fast, slow), POLICY, {fast.id: 16, slow.id: 2})) == "slow"
    assert routed(SHORT, fast, slow, load=load_of({"fast": 16, "slow": 2})).reason == "spread"


def test_policy_sets_the_load_bound() -> None:
    fast, slow = replica("fast", service_ms=10.0), replica("slow", service_ms=100.0)
    outstanding = {fast.id: 16, slow.id: 2}
    generous = RoutingEntry("generous", ("*",), bounded_load=2.0)
    assert chosen(decide(SHORT, pool(fast, slow), POLICY, outstanding)) == "slow"  # a share of 16
    assert chosen(decide(SHORT, pool(fast, slow), generous, outstanding)) == "fast"  # a share of 23


@given(st.lists(st.tuples(st.integers(0, 300), st.floats(1.0, 1000.0)), min_size=1, max_size=12))
def test_load_bound_always_leaves_a_replica_near_the_mean(loads: list[tuple[int, float]]) -> None:
    replicas = [replica(f"r{number}", running=load, service_ms=ms) for number, (load, ms) in enumerate(loads)]
    decision = decide(REQUEST, pool(*replicas), POLICY, {})
    assert isinstance(decision, Prediction)
    mean = (sum(load for load, _ in loads) + 1) / len(loads)
    assert decision.replica.running <= 1.25 * mean + SLACK


def test_requests_sent_since_the_last_heartbeat_count() -> None:
    a, b = replica("a"), replica("b", running=2)
    assert chosen(decide(REQUEST, pool(a, b), POLICY, {})) == "a"
    assert chosen(decide(REQUEST, pool(a, b), POLICY, {ReplicaId("a"): 3})) == "b"


def test_own_requests_in_the_heartbeat_are_not_counted_twice() -> None:
    assert predict(REQUEST, replica("a", running=20), load_of({"a": 20})).queue_ms == 50.0
    assert predict(REQUEST, replica("a", running=18, waiting=2), load_of({"a": 20})).queue_ms == 50.0


def test_waiting_requests_of_other_gateways_count() -> None:
    assert predict(REQUEST, replica("a", running=17, waiting=3), load_of({"a": 18})).queue_ms == 50.0 + 2 * 50.0


def test_waiting_requests_count_at_a_full_cache() -> None:
    full = replica("a", running=18, waiting=2, kv_usage_ratio=KV_FULL_RATIO)
    assert predict(REQUEST, full, load_of({"a": 20})).queue_ms == 50.0 + 2 * 50.0


def test_tokens_ahead_count_rather_than_requests() -> None:
    load = load_of({"a": 1, "b": 4}, {"a": 30_000, "b": 400})
    assert routed(REQUEST, replica("a"), replica("b"), load=load).replica.id == "b"


def test_full_pool_spreads_requests() -> None:
    assert [kept_ratio(used, 0.8) for used in (0.0, 0.8, 0.9, 1.0)] == [1.0, 1.0, pytest.approx(0.5), 0.0]
    assert kept_ratio(1.0, 1.0) == 1.0
    request = request_with(prompt_tokens=1000, cached_tokens={A: 900})
    load = load_of({"a": 2}, {"a": 100})
    for usage, where, reason in ((0.5, "a", "prefix"), (1.0, "b", "spread")):
        views = [replica(name, kv_usage_ratio=usage) for name in ("a", "b")]
        found = routed(request, *views, load=load)
        assert (found.replica.id, found.reason) == (where, reason)


def test_cached_tokens_are_capped_at_the_prompt() -> None:
    found = predict(request_with(cached_tokens={A: 10_000}), replica("a"), OwnLoad())
    assert (found.prefill_ms, found.cached_tokens) == (0.0, 200)


def test_session_returns_unless_the_wait_is_long() -> None:
    request = request_with(session_replica=B)
    a, b = replica("a"), replica("b", running=4, service_ms=150.0)
    assert (routed(request, a, b).replica.id, routed(request, a, b).reason) == ("b", "session")
    # credit: 50 ms and half of the prefill of 200 tokens, 100 ms in all; the four requests cost 30 ms, and delaying
    # them costs 20 ms
    assert routed(request, a, b, load=load_of({"b": 1}, {"b": 80})).replica.id == "b"
    assert routed(request, a, b, load=load_of({"b": 1}, {"b": 90})).replica.id == "a"


def test_a_session_whose_replica_is_gone_goes_anywhere() -> None:
    assert routed(request_with(session_replica=B), replica("a"), replica("b", phase="dead")).replica.id == "a"
    assert routed(request_with(session_replica=B), replica("a"), replica("b"), excluded=[B]).replica.id == "a"


def test_session_credit_is_lower_if_caches_are_known() -> None:
    request = request_with(session_replica=B, cached_tokens={A: 10})
    for more_ms, where in ((-30.0, "b"), (20.0, "a")):
        slower = replica("b", running=1, service_ms=20 * (SESSION_CREDIT_MS + more_ms))
        assert routed(request, replica("a"), slower).replica.id == where


def test_the_own_zone_answers_unless_another_is_much_faster() -> None:
    here, there = replica("a", zone="west", running=1, service_ms=250.0), replica("b", zone="east")
    assert routed(request_with(zone="west"), here, there).replica.id == "a"
    assert routed(request_with(), here, there).replica.id == "b"
    assert 250.0 / 20 < CROSS_ZONE_MS < 2 * 250.0 / 20
    busy = replica("a", zone="west", running=2, service_ms=250.0)
    assert routed(request_with(zone="west"), busy, there).replica.id == "b"


def test_refusal_is_only_a_penalty() -> None:
    a, b = replica("a"), replica("b", running=1)
    assert routed(REQUEST, a, b, penalties_ms={A: 5000.0}).replica.id == "b"
    assert routed(REQUEST, a, b, penalties_ms={A: 5000.0}, excluded=[B]).replica.id == "a"


def test_explanation_contains_every_term() -> None:
    said = routed(request_with(cached_tokens={A: 128}), replica("a", running=2)).explain()
    assert said == {
        "reason": "prefix",
        "predicted_ms": 41.0,
        "queue_ms": 5.0,
        "prefill_ms": 36.0,
        "adapter_ms": 0.0,
        "outstanding": 2,
        "cached_tokens": 128,
    }


@pytest.mark.parametrize("phase", ["starting", "draining", "hung", "dead"])
def test_only_ready_replicas_answer(phase: str) -> None:
    assert chosen(decide(REQUEST, pool(replica("a", phase=phase), replica("b", running=9)), POLICY, {})) == "b"
    assert decide(REQUEST, pool(replica("a", phase=phase)), POLICY, {}) == NoReplica("no_replica_ready")


def test_only_replicas_with_the_adapter_answer_for_it() -> None:
    request = request_with(engine_name=ADAPTER, is_adapter=True)
    idle, busy = replica("a"), replica("b", running=9, adapters=frozenset({ADAPTER}))
    assert chosen(decide(request, pool(idle, busy), POLICY, {})) == "b"
    assert decide(request, pool(idle), POLICY, {}) == NoReplica("adapter_not_loaded")


def test_no_replica_reasons_are_distinct() -> None:
    a = replica("a")
    assert decide(REQUEST, pool(), POLICY, {}) == NoReplica("pool_empty")
    assert decide(REQUEST, pool(a), POLICY, {}, excluded=[a.id]) == NoReplica("all_tried")


def test_excluded_replica_is_not_chosen() -> None:
    assert (
        chosen(decide(REQUEST, pool(replica("a"), replica("b", running=9)), POLICY, {}, excluded=[ReplicaId("a")]))
        == "b"
    )


def test_ties_are_spread_over_replicas_by_request() -> None:
    views = pool(*(replica(f"r{n}") for n in range(4)))
    counts: dict[str, int] = {}
    for number in range(400):
        winner = chosen(decide(request_with(tie_key=f"request-{number}"), views, POLICY, {}))
        counts[winner] = counts.get(winner, 0) + 1
    assert set(counts) == {"r0", "r1", "r2", "r3"}
    assert min(counts.values()) > 60


loads = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8)


@settings(deadline=None)
@given(loads, st.integers(0, 1000), st.randoms(use_true_random=False))
def test_order_of_replicas_does_not_matter(outstanding: list[tuple[int, int]], tokens: int, rng: random.Random) -> None:
    views = [replica(f"r{n}", running=running, waiting=waiting) for n, (running, waiting) in enumerate(outstanding)]
    shuffled = rng.sample(views, len(views))
    request = request_with(prompt_tokens=tokens)
    assert decide(request, pool(*views), POLICY, {}) == decide(request, pool(*shuffled), POLICY, {})


@settings(deadline=None)
@given(loads, st.dictionaries(st.sampled_from([f"r{n}" for n in range(8)]), st.integers(0, 9)))
def test_chosen_replica_has_the_least_score(outstanding: list[tuple[int, int]], in_flight: dict[str, int]) -> None:
    views = [replica(f"r{n}", running=running, waiting=waiting) for n, (running, waiting) in enumerate(outstanding)]
    own = {ReplicaId(name): count for name, count in in_flight.items()}
    decision = decide(REQUEST, pool(*views), POLICY, own)
    assert isinstance(decision, Prediction)
    share = SLACK + 1.25 * (sum(predict(REQUEST, view, OwnLoad(own)).outstanding for view in views) + 1) / len(views)
    fair = [view for view in views if predict(REQUEST, view, OwnLoad(own)).outstanding < share]
    scores = {view.id: score_ms(REQUEST, view, OwnLoad(own), 1.0, {}) for view in fair}
    assert isclose(scores[decision.replica.id], min(scores.values()), abs_tol=1e-9)


names = st.sampled_from([f"r{n}" for n in range(12)])
beats = st.tuples(
    st.integers(0, 40),
    st.integers(0, 9),
    st.floats(0.0, 1.0),
    st.sampled_from([10.0, 50.0, 400.0]),
    st.sampled_from([0.05, 0.5]),
    st.sampled_from(["", "west", "east"]),
)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(beats, min_size=1, max_size=12),
    st.dictionaries(names, st.tuples(st.integers(1, 60), st.integers(0, 40_000))),
    st.dictionaries(names, st.integers(0, 9_000)),
    st.dictionaries(names, st.integers(0, 9_000)),
    st.dictionaries(names, st.sampled_from([1000.0, 5000.0])),
    st.tuples(names, st.integers(0, 8_000), st.sampled_from(["", "west"])),
)
def test_loop_equals_the_formula(
    beaten: list[tuple[int, int, float, float, float, str]],
    own: dict[str, tuple[int, int]],
    cached: dict[str, int],
    in_host: dict[str, int],
    penalties: dict[str, float],
    who: tuple[str, int, str],
) -> None:
    views = [
        replica(
            *(f"r{n}",),
            running=a,
            waiting=b,
            kv_usage_ratio=c,
            service_ms=d,
            prefill_ms_per_token=e,
            zone=f,
            reload_ms_per_token=0.02 * n,
        )
        for n, (a, b, c, d, e, f) in enumerate(beaten)
    ]
    load = load_of({name: it[0] for name, it in own.items()}, {name: it[1] for name, it in own.items()})
    session, tokens, zone = who
    request = request_with(
        prompt_tokens=tokens,
        cached_tokens={ReplicaId(name): count for name, count in cached.items()},
        reload_tokens={ReplicaId(name): count for name, count in in_host.items()},
        session_replica=ReplicaId(session),
        zone=zone,
    )
    penalties_ms = {ReplicaId(name): ms for name, ms in penalties.items()}
    index = PoolIndex(views)
    kept = kept_ratio(index.utilization_ratio, POLICY.spread_above_utilization_ratio) if cached else 1.0
    scores = {view.id: score_ms(request, view, load, kept, penalties_ms) for view in views}
    for row in least(request, index.rows, load, kept, penalties_ms)[0]:
        assert isclose(scores[row[0]], min(scores.values()), rel_tol=1e-9, abs_tol=1e-6)
