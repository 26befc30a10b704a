"""Pools with several versions of their base: a request goes to replicas that have loaded the one that is meant."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import Digest, EngineName, ReplicaId
from functions.decisions.adapters.cold import choose_cold
from functions.decisions.routing.candidates import SCAN_MAX, candidates
from functions.decisions.routing.choice import NoReplica, PoolIndex, Prediction, ReplicaView, RouteRequest, route
from functions.decisions.routing.own_load import OwnLoad
from tests.decisions.routing.test_routing import ADAPTER, POLICY, REQUEST, pool, replica

V1, V2 = Digest("sha256:" + "1" * 64), Digest("sha256:" + "2" * 64)
MEANT = msgspec.structs.replace(REQUEST, weights=V2)
ADAPTERS = msgspec.structs.replace(MEANT, engine_name=ADAPTER, is_adapter=True)
BOTH = frozenset({ADAPTER})


def found(request: RouteRequest, *views: ReplicaView, excluded: tuple[str, ...] = ()) -> set[str] | str:
    rows = candidates(request, PoolIndex(views), [ReplicaId(each) for each in excluded])
    return rows.reason if isinstance(rows, NoReplica) else {row[0] for row in rows}


def test_only_who_has_loaded_the_version_answers_it() -> None:
    old, new = replica("old", weights=V1), replica("new", weights=V2, running=30)
    assert found(MEANT, old, new) == {"new"}, "however busy it is"
    assert found(REQUEST, old, new) == {"old", "new"}, "a pool with one version asks nobody"


def test_who_does_not_tell_is_not_taken_for_any_version() -> None:
    """It has just been started anew, and its agent is still reading."""
    assert found(MEANT, replica("new", weights=V2), replica("unsaid")) == {"new"}
    assert found(MEANT, replica("old", weights=V1), replica("unsaid")) == "weights_not_loaded"


def test_where_nobody_tells_as_older_agents_all_count() -> None:
    assert found(MEANT, replica("a"), replica("b")) == {"a", "b"}


def test_those_that_failed_it_are_not_asked_again() -> None:
    assert found(MEANT, replica("new", weights=V2), replica("old", weights=V1), excluded=("new",)) == "all_tried"


def test_an_adapter_goes_with_its_base() -> None:
    old, new = replica("old", weights=V1, adapters=BOTH), replica("new", weights=V2, adapters=BOTH)
    assert found(ADAPTERS, old, new) == {"new"}
    assert found(ADAPTERS, old, replica("new", weights=V2)) == "adapter_not_loaded"
    assert found(ADAPTERS, old) == "weights_not_loaded"


def test_it_is_loaded_and_copied_only_where_its_base_is() -> None:
    able = {"peer_port": 1, "adapter_room": 4}
    old, new = replica("old", weights=V1, **able), replica("new", weights=V2, running=9, **able)
    chosen = choose_cold(ADAPTERS, pool(old, new), POLICY, OwnLoad())
    assert isinstance(chosen, ReplicaView) and chosen.id == "new"
    busy = replica("busy", weights=V2, adapters=BOTH, running=400, waiting=400)
    decision = route(ADAPTERS, PoolIndex([busy, old]), POLICY, OwnLoad())
    assert isinstance(decision, Prediction) and decision.load_elsewhere is None, "no copy on the other version"
    decision = route(ADAPTERS, PoolIndex([busy, old, new]), POLICY, OwnLoad())
    assert isinstance(decision, Prediction) and decision.load_elsewhere == "new"


def test_a_large_pool_draws_among_those_of_the_version_and_takes_nobody_elses_session() -> None:
    views = [replica(f"r{n:03d}", weights=V2 if n % 2 else V1) for n in range(4 * SCAN_MAX)]
    request = msgspec.structs.replace(MEANT, session_replica=ReplicaId("r000"), cached_tokens={ReplicaId("r002"): 99})
    drawn = found(request, *views)
    assert isinstance(drawn, set) and drawn and all(int(name[1:]) % 2 for name in drawn)


@given(seed=st.integers(0, 10_000))
def test_the_index_is_as_good_as_looking_at_everybody(seed: int) -> None:
    """Replicas come, go, change their version and their adapters."""
    rng, index = random.Random(seed), PoolIndex()
    views: dict[str, ReplicaView] = {}
    for _ in range(40):
        name = f"r{rng.randrange(6)}"
        if rng.random() < 0.2 and name in views:
            index.drop(views.pop(name))
            continue
        view = replica(
            name,
            phase=rng.choice(["ready", "draining"]),
            weights=rng.choice([None, V1, V2]),
            adapters=rng.choice([frozenset(), BOTH]),
        )
        index.put(views.get(name), view)
        views[name] = view
        ready = [each for each in views.values() if each.phase == "ready"]
        telling = any(each.weights for each in ready)
        meant = {each.id for each in ready if each.weights == V2 or not telling}
        assert {row[0] for row in index.rows_with(V2)} == meant
        holders = {each.id for each in ready if ADAPTER in each.adapters}
        assert {row[0] for row in index.rows_with(V2, ADAPTER)} == meant & holders


@pytest.mark.parametrize("name", [EngineName("base"), ADAPTER])
def test_nobody_can_fill_the_memory_with_versions_of_their_own_invention(name: EngineName) -> None:
    index = PoolIndex([replica("r0", weights=V1)])
    for number in range(100):
        index.rows_with(Digest(f"sha256:{number:064d}"), name)
    assert not index._by_weights
