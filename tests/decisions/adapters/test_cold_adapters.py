"""Choice of the replica that loads a cold adapter: room, share, disk and time, and the same choice in every gateway."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import Digest, EngineName, PoolName, ReplicaId
from functions.api.snapshot import RoutingEntry
from functions.decisions.adapters.cold import choose_cold
from functions.decisions.distribution import bloom
from functions.decisions.routing.choice import NEAR_MS, NoReplica, PoolView, ReplicaView, RouteRequest
from functions.decisions.routing.own_load import OwnLoad

POOL = PoolName("base")
POLICY = RoutingEntry("default", ("*",))
DIGEST = Digest("sha256:" + "ab" * 32)
COLD = EngineName("acme/bot@sha256:abababababababab")


def request(name: EngineName = COLD) -> RouteRequest:
    return RouteRequest(name, is_adapter=True, prompt_tokens=0, tie_key="request-1")


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
        service_ms=40.0,
        prefill_ms_per_token=0.5,
        peer_port=8500,
        adapter_room=1,
    )
    return replace(view, **changes)  # type: ignore[arg-type]


def chosen(*replicas: ReplicaView, name: EngineName = COLD, excluded: tuple[str, ...] = ()) -> str:
    out = [ReplicaId(each) for each in excluded]
    found = choose_cold(request(name), PoolView(POOL, replicas), POLICY, OwnLoad(), out)
    return found.reason if isinstance(found, NoReplica) else found.id


def chosen_for_many(*replicas: ReplicaView) -> set[str]:
    return {chosen(*replicas, name=EngineName(f"acme/bot@sha256:{number:016x}")) for number in range(40)}


def test_worked_example_from_the_prologue() -> None:
    a, full = replica("a", waiting=1), replica("c", adapter_room=0)
    near, far = replica("b", waiting=1, service_ms=120.0), replica("b", waiting=1, service_ms=400.0)
    assert chosen_for_many(a, near, full) == {"a", "b"}, "the hash of the name says which"
    assert chosen_for_many(a, far, full) == {"a"}
    has_it = replace(near, on_disk=bloom.build([DIGEST]))
    assert chosen(a, has_it, full) == "b"
    assert chosen(a, has_it, replace(full, withdrawn=frozenset({COLD}))) == "c"


def test_replica_that_withdrew_the_adapter_is_not_chosen_over_its_share() -> None:
    busy = replica("busy", running=20, withdrawn=frozenset({COLD}))
    assert chosen(busy, replica("idle")) == "idle"


def test_own_queued_prompts_count_as_load() -> None:
    load = OwnLoad()
    load.add_request(ReplicaId("a"), 30_000)
    pool = PoolView(POOL, (replica("a"), replica("b")))
    names = [EngineName(f"acme/bot@sha256:{number:016x}") for number in range(20)]
    found = [choose_cold(request(name), pool, POLICY, load) for name in names]
    assert {each.id for each in found if isinstance(each, ReplicaView)} == {"b"}


def test_adapter_goes_to_the_same_replica_whatever_load_a_gateway_sees() -> None:
    replicas = [replica(f"r{number}", running=number % 3) for number in range(8)]
    idle = [replace(each, running=0) for each in replicas]
    assert chosen(*replicas) == chosen(*idle) == chosen(*reversed(replicas))


def test_adapters_spread_over_the_replicas() -> None:
    assert len(chosen_for_many(*(replica(f"r{number}") for number in range(4)))) == 4


def test_replica_without_room_is_chosen_if_it_is_the_only_one() -> None:
    assert chosen(replica("a", adapter_room=0), replica("b")) == "b"
    assert chosen(replica("a", adapter_room=0)) == "a"


def test_replica_over_its_share_is_not_chosen() -> None:
    assert chosen_for_many(replica("busy", running=20, service_ms=1.0), replica("idle", service_ms=1.0)) == {"idle"}


@pytest.mark.parametrize(
    ("replicas", "reason"),
    [
        ((), "pool_empty"),
        ((replica("a", phase="draining"),), "no_replica_ready"),
        ((replica("x"),), "all_tried"),
        ((replica("a", peer_port=0),), "adapter_not_loaded"),
    ],
)
def test_no_choice_names_the_reason(replicas: tuple[ReplicaView, ...], reason: str) -> None:
    assert chosen(*replicas, excluded=("x",)) == reason


_REPLICAS = st.lists(
    st.builds(
        replica,
        st.sampled_from([f"r{number}" for number in range(6)]),
        phase=st.sampled_from(["ready", "ready", "draining", "hung"]),
        running=st.integers(0, 50),
        adapter_room=st.integers(0, 2),
        peer_port=st.sampled_from([0, 8500, 8500]),
        service_ms=st.floats(1, 1000),
    ),
    unique_by=lambda each: each.id,
)


@given(_REPLICAS, st.sets(st.sampled_from(["r0", "r1", "r2"])))
def test_the_laws_hold_for_any_pool(replicas: list[ReplicaView], excluded: set[str]) -> None:
    ids = [ReplicaId(each) for each in excluded]
    found = choose_cold(request(), PoolView(POOL, tuple(replicas)), POLICY, OwnLoad(), ids)
    could = [each for each in replicas if each.phase == "ready" and each.peer_port and each.id not in excluded]
    if isinstance(found, NoReplica):
        assert not could
        return
    assert found in could
    rooms = [each for each in could if each.adapter_room]
    assert found in (rooms or could)
    least_ms = min(each.running * each.service_ms for each in rooms or could)
    shares = [each for each in rooms or could if each.running < found.running]
    assert found.running * found.service_ms <= least_ms + NEAR_MS or shares == [] or len(rooms or could) > 1
