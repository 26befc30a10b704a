"""Large pools: a random sample plus replicas with the prompt or session, about as good as scanning the whole pool."""

import random

import msgspec
import pytest

from functions.api.ids import EngineName, ReplicaId
from functions.api.snapshot import RoutingEntry
from functions.decisions.routing.candidates import DRAWS, SCAN_MAX, all_candidates, candidates, heaviest, sample_rows
from functions.decisions.routing.choice import NoReplica, PoolIndex, Prediction, RouteRequest, predict, route
from functions.decisions.routing.own_load import OwnLoad
from tests.decisions.routing.test_routing import POLICY, replica

POOL = PoolIndex(replica(f"r{n:03d}", running=n % 50) for n in range(200))
REQUEST = RouteRequest(EngineName("base"), is_adapter=False, prompt_tokens=200, tie_key="request-1")
ADAPTER = EngineName("acme/bot@sha256:1")


def request_with(**changes: object) -> RouteRequest:
    return msgspec.structs.replace(REQUEST, **changes)


def looked_at(request: RouteRequest, pool: PoolIndex = POOL, excluded: tuple[str, ...] = ()) -> set[str]:
    rows = candidates(request, pool, [ReplicaId(each) for each in excluded])
    assert not isinstance(rows, NoReplica)
    return {row[0] for row in rows}


def test_small_pool_is_scanned_completely() -> None:
    small = PoolIndex(replica(f"r{n:03d}") for n in range(SCAN_MAX))
    assert len(looked_at(REQUEST, small)) == SCAN_MAX


def test_large_pool_is_sampled_plus_replicas_with_prompt_or_session() -> None:
    request = request_with(
        cached_tokens={ReplicaId("r007"): 512, ReplicaId("gone"): 512}, session_replica=ReplicaId("r123")
    )
    found = looked_at(request)
    assert {"r007", "r123"} <= found and len(found) <= DRAWS + 2
    assert not looked_at(request, excluded=("r007", "r123")) & {"r007", "r123"}


def test_request_has_the_same_sample_in_every_gateway() -> None:
    shuffled = list(POOL.ready)
    random.Random(1).shuffle(shuffled)
    other = PoolIndex(POOL.ready[name][6] for name in shuffled)
    assert looked_at(REQUEST) == looked_at(REQUEST, other)
    assert looked_at(REQUEST) != looked_at(request_with(tie_key="request-2"))


def test_replicas_are_sampled_evenly() -> None:
    counts = dict.fromkeys(POOL.ready, 0)
    for number in range(500):
        for row in sample_rows(POOL.rows, hash_of(number)):
            counts[row[0]] += 1
    mean = 500 * DRAWS / len(counts)
    assert 0.5 * mean < min(counts.values()) and max(counts.values()) < 1.6 * mean


def hash_of(number: int) -> int:
    return random.Random(number).getrandbits(64)


def test_sampled_choice_is_among_the_best_of_the_pool() -> None:
    load = OwnLoad()
    order = sorted(POOL.rows, key=lambda row: predict(REQUEST, row[6], load).total_ms)
    best = {row[0] for row in order[: len(order) // 5]}
    hits = 0
    for number in range(1000):
        found = route(request_with(tie_key=f"request-{number}"), POOL, POLICY, load)
        assert isinstance(found, Prediction)
        hits += found.replica.id in best
    assert hits >= 940, "1 - 0.8^16 is 0.97"


def test_other_replicas_are_used_once_the_sample_was_tried() -> None:
    drawn = looked_at(REQUEST)
    left = looked_at(REQUEST, excluded=tuple(drawn))
    assert left and not left & drawn
    assert candidates(REQUEST, POOL, list(POOL.ready)) == NoReplica("all_tried")


def test_only_holders_answer_for_an_adapter_in_a_large_pool() -> None:
    request = request_with(engine_name=ADAPTER, is_adapter=True, session_replica=ReplicaId("r001"))
    holders = [f"r{n:03d}" for n in range(0, 200, 4)]
    pool = PoolIndex(replica(f"r{n:03d}", adapters=frozenset({ADAPTER} if n % 4 == 0 else ())) for n in range(200))
    assert looked_at(request, pool) <= set(holders)
    assert candidates(request, POOL, ()) == NoReplica("adapter_not_loaded")
    assert candidates(request, pool, [ReplicaId(name) for name in holders]) == NoReplica("adapter_not_loaded")
    assert candidates(request, pool, list(pool.ready)) == NoReplica("all_tried")


@pytest.mark.parametrize("pool", [PoolIndex(), PoolIndex([replica("a", phase="dead")])])
def test_a_pool_without_ready_replicas_says_so(pool: PoolIndex) -> None:
    reason = NoReplica("no_replica_ready" if pool.known else "pool_empty")
    assert candidates(REQUEST, pool, ()) == all_candidates(REQUEST, pool, ()) == reason


def test_tie_break_does_not_depend_on_other_replicas() -> None:
    rows = POOL.rows[:40]
    for number in range(50):
        won = heaviest(rows, f"request-{number}")
        others = [row for row in rows if row is not won]
        assert heaviest([*others[:20], won], f"request-{number}") is won


def test_policy_applies_in_a_large_pool() -> None:
    bounded = RoutingEntry("d", ("*",), bounded_load=1.0)
    crowded = OwnLoad({ReplicaId("r007"): 500})
    request = request_with(prompt_tokens=100_000, cached_tokens={ReplicaId("r007"): 100_000})
    found = route(request, POOL, bounded, crowded)
    assert isinstance(found, Prediction) and found.replica.id != "r007" and found.reason == "spread"


def test_rows_of_adapter_holders_are_from_the_last_heartbeat() -> None:
    holding = {"adapters": frozenset({ADAPTER})}
    idle, busy = replica("r0", **holding), replica("r0", running=7, **holding)
    pool = PoolIndex([idle, replica("r1")])
    assert [row[6] for row in pool.rows_of(ADAPTER)] == [idle]
    pool.put(idle, busy)
    assert [row[6] for row in pool.rows_of(ADAPTER)] == [busy]
    pool.put(None, replica("r2", **holding))
    assert {row[0] for row in pool.rows_of(ADAPTER)} == {"r0", "r2"}
    pool.drop(busy)
    assert {row[0] for row in pool.rows_of(ADAPTER)} == {"r2"}
    assert pool.rows_of(EngineName("nobody's")) == []


def test_exclusion_applies_to_one_request_only() -> None:
    pool = PoolIndex(replica(f"r{n}", adapters=frozenset({ADAPTER})) for n in range(3))
    request = request_with(engine_name=ADAPTER, is_adapter=True)
    assert looked_at(request, pool, excluded=("r0", "r1")) == {"r2"}
    assert looked_at(request, pool) == {"r0", "r1", "r2"}
