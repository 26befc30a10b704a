"""Assumed homes: equal in every gateway, spread over the pool, and moved only by added or removed replicas."""

import random
from collections import Counter

import pytest

from functions.api.ids import EngineName, ReplicaId
from functions.decisions.routing.candidates import SCAN_MAX
from functions.decisions.routing.choice import PoolIndex, route
from functions.decisions.routing.homes import assumed_home
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.request import Prediction
from tests.decisions.routing.test_routing import ADAPTER, POLICY, replica, request_with

BASE = EngineName("base")
KEYS = [f"conversation-{number}" for number in range(2000)]


def pool_of(size: int) -> PoolIndex:
    return PoolIndex(replica(f"r{number:03d}") for number in range(size))


def homes(pool: PoolIndex) -> dict[str, ReplicaId | None]:
    return {key: assumed_home(key, pool, BASE, is_adapter=False) for key in KEYS}


@pytest.mark.parametrize("size", [3, SCAN_MAX, 200])
def test_homes_do_not_depend_on_how_a_gateway_learned_of_replicas(size: int) -> None:
    views = [row[6] for row in pool_of(size).rows]
    random.Random(1).shuffle(views)
    other = PoolIndex([*views, replica("warm", phase="warm")])
    other.put(None, replica("gone"))
    other.drop(replica("gone"))
    assert homes(other) == homes(pool_of(size))


@pytest.mark.parametrize(("size", "most"), [(4, 1.15), (SCAN_MAX, 1.5), (200, 2.0)])
def test_conversations_spread(size: int, most: float) -> None:
    counts = Counter(homes(pool_of(size)).values())
    assert max(counts.values()) < most * len(KEYS) / size + 4


@pytest.mark.parametrize("size", [3, 100])
def test_added_replica_takes_only_its_share(size: int) -> None:
    pool = pool_of(size)
    before = homes(pool)
    pool.put(None, replica("new"))
    after = homes(pool)
    moved = [key for key in KEYS if before[key] != after[key]]
    assert {after[key] for key in moved} == {"new"}
    assert 0.4 / (size + 1) < len(moved) / len(KEYS) < 2.0 / (size + 1)


@pytest.mark.parametrize("size", [3, 100])
def test_removed_replica_moves_only_its_own_conversations(size: int) -> None:
    pool = pool_of(size)
    before = homes(pool)
    pool.drop(replica("r001"))
    after = homes(pool)
    assert all(after[key] == home for key, home in before.items() if home != "r001")
    assert len({after[key] for key, home in before.items() if home == "r001"}) > 1


def test_home_of_an_adapter_has_it_loaded() -> None:
    pool = PoolIndex(
        replica(f"r{number:03d}", adapters=frozenset({ADAPTER} if number % 3 == 0 else ())) for number in range(150)
    )
    found = {assumed_home(key, pool, ADAPTER, is_adapter=True) for key in KEYS}
    assert found <= pool.holders[ADAPTER] and len(found) > 40
    assert assumed_home("key", pool, EngineName("acme/other@sha256:2"), is_adapter=True) is None
    assert assumed_home("key", PoolIndex(), BASE, is_adapter=False) is None


def test_first_turn_goes_to_its_home_unless_another_is_sooner() -> None:
    home = ReplicaId("b")
    first = request_with(session_replica=home, is_first_turn=True)
    for service_ms, where in ((20 * 15.0, "b"), (20 * 25.0, "a")):
        busy = replica("b", running=1, service_ms=service_ms, prefill_ms_per_token=0.0)
        found = route(first, PoolIndex([replica("a", prefill_ms_per_token=0.0), busy]), POLICY, OwnLoad())
        assert isinstance(found, Prediction)
        assert (found.replica.id, found.reason) == (where, "least_predicted_wait"), "there is nothing there yet"
