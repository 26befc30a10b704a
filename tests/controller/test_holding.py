"""No channel moves to a version that is not loaded, and no channel is held without a benefit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from functions.api.ids import INCOMING, Digest, ModelId, PoolName, engine_name
from functions.api.snapshot import SCHEMA_VERSION, ModelEntry, PoolEntry, Snapshot, VersionEntry
from functions.controller.snapshot.holding import LoadedReplica, has_flips, hold_flips, serving_of
from functions.decisions.adapters.demand import build_demand
from functions.decisions.adapters.plan import AdapterPolicy, AdapterState, EngineAdapters, plan, record_failed_load
from functions.fleet.heartbeat import Heartbeat
from functions.replica.heartbeat_loop import compose
from functions.replica.status import Adapters
from tests.replica.statuses import make_status

POOL = PoolName("base")
BOT = ModelId("acme/bot")
DIGESTS = {name: Digest("sha256:" + digit * 64) for name, digit in (("v1", "1"), ("v2", "2"), ("v3", "3"))}


def version(name: str, digest: Digest | None = None) -> VersionEntry:
    digest = digest or DIGESTS[name]
    return VersionEntry(name, digest, engine_name(BOT, digest), f"s3://x/{name}")


def snapshot(*versions: str, pool: str = POOL, entries: tuple[VersionEntry, ...] = (), **channels: str) -> Snapshot:
    named = tuple(version(name) for name in versions) or entries
    bot = ModelEntry(BOT, PoolName(pool), "lora", named, channels)
    return Snapshot(
        schema_version=SCHEMA_VERSION, epoch=1, revision="", compiled_unix_s=0.0, tenants=(), keys=(),
        models=(bot,), pools=(PoolEntry(POOL, 2048), PoolEntry(PoolName("other"), 2048)),
    )  # fmt: skip


def replica(*versions: str, without_room: tuple[str, ...] = ()) -> LoadedReplica:
    loaded, never = ({version(name).engine_name for name in group} for group in (versions, without_room))
    return LoadedReplica(frozenset(loaded), frozenset(never))


def channels(previous: Snapshot | None, wanted: Snapshot, *replicas: LoadedReplica) -> dict[str, str]:
    return dict(hold_flips(previous, wanted, {POOL: replicas}).snapshot.models[0].channels)


OLD, NEW = snapshot("v1", stable="v1"), snapshot("v1", "v2", stable="v2")


def test_a_base_flips_when_half_of_the_replicas_have_loaded_its_weights() -> None:
    """Replicas that report nothing neither block the flip nor cause it while others have the old weights."""
    old, new = (
        replace(one, models=tuple(replace(model, id=ModelId(POOL), type="base") for model in one.models))
        for one in (OLD, NEW)
    )
    has = {name: LoadedReplica(frozenset(), weights=digest) for name, digest in DIGESTS.items()}
    assert channels(old, new, has["v1"], has["v1"], has["v2"])["stable"] == "v1"
    assert channels(old, new, has["v1"], has["v2"])["stable"] == "v2"
    assert channels(old, new, LoadedReplica(frozenset()), LoadedReplica(frozenset()))["stable"] == "v2"


def test_channel_flip_waits_for_half_of_the_replicas() -> None:
    assert channels(OLD, NEW, replica("v1"), replica("v1"), replica("v1", "v2"))["stable"] == "v1"
    assert channels(OLD, NEW, replica("v1"), replica("v1", "v2"), replica("v1", "v2")) == {"stable": "v2"}


def test_held_version_is_reported_and_loaded_before_unnamed_ones() -> None:
    held = hold_flips(OLD, NEW, {POOL: (replica("v1"),)})
    assert held.flips == ("acme/bot:stable stays v1 until v2 is loaded",)
    assert held.snapshot.models[0].channels == {INCOMING: "v2", "stable": "v1"}


def test_removed_version_stays_while_its_channel_is_held() -> None:
    only_new = snapshot("v2", stable="v2")
    held = hold_flips(OLD, only_new, {POOL: (replica("v1"),)}).snapshot.models[0]
    assert [entry.name for entry in held.versions] == ["v1", "v2"]
    done = hold_flips(
        hold_flips(OLD, only_new, {POOL: (replica("v1"),)}).snapshot, only_new, {POOL: (replica("v1", "v2"),)}
    )
    assert done.snapshot == only_new
    assert done.flips == ()


def test_channel_is_not_held_if_no_replica_has_the_old_version() -> None:
    assert channels(OLD, NEW) == {"stable": "v2"}
    assert channels(OLD, NEW, replica("v3")) == {"stable": "v2"}


def test_channel_is_not_held_without_room_for_both_versions() -> None:
    full = replica("v1", without_room=("v2",))
    assert channels(OLD, NEW, full, full, replica("v1")) == {"stable": "v2"}
    assert channels(OLD, NEW, full, replica("v1"), replica("v1"))["stable"] == "v1"  # half of them may have it already


def test_channel_is_held_even_if_other_adapters_have_no_room() -> None:
    full = replica("v1", without_room=("v3",))
    assert channels(OLD, NEW, full, full)["stable"] == "v1"


def test_new_models_new_channels_and_moved_pools_are_not_held() -> None:
    assert channels(None, NEW, replica("v1")) == {"stable": "v2"}
    assert channels(OLD, snapshot("v1", "v2", stable="v1", next="v2"), replica("v1")) == {"stable": "v1", "next": "v2"}
    moved = snapshot("v1", "v2", pool="other", stable="v2")
    assert hold_flips(OLD, moved, {POOL: (replica("v1"),), PoolName("other"): ()}).flips == ()


def test_version_with_a_new_artifact_is_not_held() -> None:
    """A name means one artifact at a time; a version never changes, except in a workshop."""
    again = snapshot(entries=(version("v1", DIGESTS["v3"]),), stable="v1")
    assert hold_flips(OLD, again, {POOL: (replica("v1"),)}).snapshot == again


def test_only_moving_channels_are_checked() -> None:
    assert has_flips(OLD, NEW)
    assert not has_flips(OLD, OLD)
    assert not has_flips(None, NEW)
    assert not has_flips(OLD, snapshot("v1", "v2", stable="v1"))


def test_replicas_that_are_not_ready_do_not_count() -> None:
    def heartbeat(name: str, phase: str, *without_room: str) -> Heartbeat:
        return Heartbeat(
            replica_id=name, pool="base", host="h", port=1, phase=phase, sequence=0, incarnation=0,  # type: ignore[arg-type]
            sent_unix_s=0.0, adapters=(version("v1").engine_name,), adapters_without_room=without_room,
        )  # fmt: skip

    serving = serving_of(
        [heartbeat("a", "ready"), heartbeat("b", "draining"), heartbeat("c", "ready", version("v2").engine_name)]
    )
    assert serving == {POOL: (replica("v1"), replica("v1", without_room=("v2",)))}


@pytest.mark.parametrize("newer", [0, 2])
def test_older_agents_without_room_field_do_not_hold_for_ever(newer: int) -> None:
    heartbeat = Heartbeat(
        replica_id="old", pool="base", host="h", port=1, phase="ready", sequence=0, incarnation=0, sent_unix_s=0.0,
        adapters=(version("v1").engine_name,), reason="acme/bot@sha256:2: over this replica's limit of 1 adapters",
    )  # fmt: skip
    told = replace(heartbeat, reason="", adapters_without_room=(version("v2").engine_name,))
    assert hold_flips(OLD, NEW, serving_of([heartbeat, heartbeat, *[told] * newer])).flips == ()
    assert hold_flips(OLD, NEW, serving_of([replace(heartbeat, reason=""), heartbeat])).flips != ()
    assert (
        hold_flips(OLD, NEW, serving_of([replace(heartbeat, adapters_without_room=()), heartbeat])).flips != ()
    )  # reported: no adapter without room


def test_heartbeat_lists_adapters_without_room_beside_many_failures() -> None:
    """The reason text of a heartbeat has no space for eight broken versions."""
    bot = snapshot("v1", "v2", "v3", stable="v1", **{INCOMING: "v2", f"{INCOMING}-2": "v3"}).models[0]
    broken = [ModelEntry(ModelId(f"acme/x{n}"), POOL, "lora", (version("v1", digest_of(n)),), {}) for n in range(8)]
    broken = [replace(each, versions=(renamed(each),)) for each in broken]
    demand = build_demand(replace(OLD, models=(bot, *broken)), POOL)
    policy, state = AdapterPolicy(max_adapters=3), AdapterState()
    for each in broken:
        state = record_failed_load(
            state, each.versions[0].engine_name, "refused by the engine", 1e9, policy, refused=True
        )
    made = plan(demand, EngineAdapters(frozenset()), state, 0.0, policy)
    status = make_status(adapters=Adapters(known=True, reason=made.reason, without_room=made.without_room))
    ((told,),) = serving_of([compose(status, sequence=0, sent_unix_s=0.0)]).values()
    assert told.without_room == {version("v3").engine_name}


def digest_of(number: int) -> Digest:
    return Digest(f"sha256:{number + 16:064x}")


def renamed(model: ModelEntry) -> VersionEntry:
    (entry,) = model.versions
    return replace(entry, engine_name=engine_name(model.id, entry.digest))


names = st.sampled_from(["v1", "v2", "v3"])


@given(old=names, new=names, loaded=st.lists(st.sets(names), max_size=4))
def test_channel_never_moves_from_a_served_to_an_unserved_version(old: str, new: str, loaded: list[set[str]]) -> None:
    replicas = [replica(*sorted(each)) for each in loaded]
    chosen = channels(snapshot("v1", "v2", "v3", stable=old), snapshot("v1", "v2", "v3", stable=new), *replicas)[
        "stable"
    ]
    assert chosen in (old, new)
    had = any(old in each for each in loaded)
    assert not (had and chosen != old and not any(chosen in each for each in loaded))
