"""Pools with several versions of their base: a request goes to replicas that have loaded the requested version."""

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


def test_only_replicas_with_the_version_answer() -> None:
    old, new = replica("old", weights=V1), replica("new", weights=V2, running=30)
    assert found(MEANT, old, new) == {"new"}, "however busy it is"
    assert found(REQUEST, old, new) == {"old", "new"}, "a pool with one version asks nobody"


def test_replica_without_reported_version_is_not_used() -> None:
    """The replica has just restarted and its agent is still reading the version."""
    assert found(MEANT, replica("new", weights=V2), replica("unsaid")) == {"new"}
    assert found(MEANT, replica("old", weights=V1), replica("unsaid")) == "weights_not_loaded"


def test_all_replicas_count_if_none_reports_a_version() -> None:
    assert found(MEANT, replica("a"), replica("b")) == {"a", "b"}


def test_failed_replicas_are_not_retried() -> None:
    assert found(MEANT, replica("new", weights=V2), replica("old", weights=V1), excluded=("new",)) == "all_tried"


def test_adapter_needs_its_base_version() -> None:
    old, new = replica("old", weights=V1, adapters=BOTH), replica("new", weights=V2, adapters=BOTH)
    assert found(ADAPTERS, old, new) == {"new"}
    assert found(ADAPTERS, old, replica("new", weights=V2)) == "adapter_not_loaded"
    assert found(ADAPTERS, old) == "weights_not_loaded"


def test_adapter_is_loaded_and_copied_only_on_its_base_version() -> None:
    able = {"peer_port": 1, "adapter_room": 4}
    old, new = replica("old", weights=V1, **able), replica("new", weights=V2, running=9, **able)
    chosen = choose_cold(ADAPTERS, pool(old, new), POLICY, OwnLoad())
    assert isinstance(chosen, ReplicaView) and chosen.id == "new"
    busy = replica("busy", weights=V2, adapters=BOTH, running=400, waiting=400)
    decision = route(ADAPTERS, PoolIndex([busy, old]), POLICY, OwnLoad())
    assert isinstance(decision, Prediction) and decision.load_elsewhere is None, "no copy on the other version"
    decision = route(ADAPTERS, PoolIndex([busy, old, new]), POLICY, OwnLoad())
    assert isinstance(decision, Prediction) and decision.load_elsewhere == "new"


def test_large_pool_samples_replicas_of_the_version_only() -> None:
    views = [replica(f"r{n:03d}", weights=V2 if n % 2 else V1) for n in range(4 * SCAN_MAX)]
    request = msgspec.structs.replace(MEANT, session_replica=ReplicaId("r000"), cached_tokens={ReplicaId("r002"): 99})
    drawn = found(request, *views)
    assert isinstance(drawn, set) and drawn and all(int(name[1:]) % 2 for name in drawn)


@given(seed=st.integers(0, 10_000))
def test_index_equals_a_full_scan(seed: int) -> None:
    """Replicas are added, removed, and change their version and adapters."""
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
def test_unknown_versions_use_no_memory(name: EngineName) -> None:
    index = PoolIndex([replica("r0", weights=V1)])
    for number in range(100):
        index.rows_with(Digest(f"sha256:{number:064d}"), name)
    assert not index._by_weights
