"""A second copy of a hot adapter is wanted if it would have answered sooner, its load included."""

import msgspec
import pytest

from functions.api.ids import Digest, EngineName, ReplicaId
from functions.decisions.distribution import bloom
from functions.decisions.routing.choice import Prediction, RouteRequest, route
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import PoolIndex, ReplicaView
from tests.decisions.routing.test_routing import POLICY, load_of, replica

DIGEST = Digest("sha256:" + "ab" * 32)
NAME = EngineName("acme/bot@sha256:abababababababab")
REQUEST = RouteRequest(NAME, is_adapter=True, prompt_tokens=200, tie_key="request-1")
BUSY = OwnLoad({ReplicaId("h"): 1})
BUSY.ahead_tokens[ReplicaId("h")] = 1600


def holder(**changes: object) -> ReplicaView:
    return replica("h", adapters=frozenset({NAME}), peer_port=8500, adapter_room=1, **changes)


def loader(name: str, *, on_disk: bool = False, **changes: object) -> ReplicaView:
    disk = bloom.build([DIGEST]) if on_disk else None
    return replica(name, on_disk=disk, **{"peer_port": 8500, "adapter_room": 4, **changes})


def wanted(*replicas: ReplicaView, load: OwnLoad = BUSY, excluded: tuple[str, ...] = ()) -> str | None:
    out = [ReplicaId(name) for name in excluded]
    found = route(REQUEST, PoolIndex(replicas), POLICY, load, excluded=out)
    assert isinstance(found, Prediction) and found.replica.id == "h", "the request itself goes to a holder"
    assert ("load_elsewhere" in found.explain()) == (found.load_elsewhere is not None)
    return found.load_elsewhere


def test_worked_example_from_the_prologue() -> None:
    assert wanted(holder(), loader("a", on_disk=True), loader("b")) == "a"
    assert wanted(holder(), loader("b")) is None


def test_fast_holder_needs_no_second_copy() -> None:
    assert wanted(holder(), loader("a", on_disk=True), load=OwnLoad()) is None


@pytest.mark.parametrize("changes", [{"peer_port": 0}, {"adapter_room": 0}, {"running": 40, "service_ms": 900.0}])
def test_copy_needs_a_replica_that_can_load_it_and_helps(changes: dict[str, object]) -> None:
    assert wanted(holder(), loader("a", on_disk=True, **changes)) is None


def test_second_copy_without_free_slot_costs_an_eviction() -> None:
    others = frozenset(EngineName(f"acme/other@sha256:{number:016x}") for number in range(14))
    full = loader("a", on_disk=True, adapters=others, adapter_room=2)
    assert wanted(holder(), full) is None
    very_busy = load_of({"h": 1}, {"h": 8000})
    assert wanted(holder(), full, load=very_busy) == "a"
    assert wanted(holder(), loader("a", on_disk=True, adapters=others, adapter_room=3)) == "a"


def test_excluded_replica_gets_no_copy() -> None:
    assert wanted(holder(), loader("a", on_disk=True), excluded=("a",)) is None


def test_gateways_choose_the_same_replica_for_a_copy() -> None:
    views = [holder(), *(loader(f"r{n}", on_disk=True) for n in range(6))]
    found = {
        route(msgspec.structs.replace(REQUEST, tie_key=str(n)), PoolIndex(views), POLICY, BUSY).load_elsewhere  # type: ignore[union-attr]
        for n in range(20)
    }
    assert len(found) == 1


@pytest.mark.parametrize("size", [6, 100])
def test_gateways_with_different_loads_choose_the_same_replica(size: int) -> None:
    """Gateways differ in what they sent to the possible loaders; the requests that want a copy differ too."""
    views = [holder(), *(loader(f"r{n:03d}", on_disk=True) for n in range(size))]
    found = set()
    for gateway in range(40):
        own = load_of({"h": 1, f"r{gateway % size:03d}": 2}, {"h": 8000, f"r{gateway % size:03d}": 300})
        decided = route(msgspec.structs.replace(REQUEST, tie_key=str(gateway)), PoolIndex(views), POLICY, own)
        assert isinstance(decided, Prediction)
        found.add(decided.load_elsewhere)
    assert len(found) == 1 and None not in found


def test_large_pool_still_finds_a_replica_for_a_copy() -> None:
    views = [holder(), *(loader(f"r{n:03d}", on_disk=True) for n in range(100))]
    assert wanted(*views) in {view.id for view in views[1:]}
