"""No channel moves to what is not loaded, and nothing is held that protects nobody."""

from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import Digest, EngineName, ModelId, PoolName, engine_name
from functions.api.snapshot import SCHEMA_VERSION, ModelEntry, PoolEntry, Snapshot, VersionEntry
from functions.controller.holding import INCOMING, Replica, flips, hold, serving_of
from functions.fleet.heartbeat import Heartbeat

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


def replica(*versions: str, has_room: bool = True) -> Replica:
    return Replica(frozenset(version(name).engine_name for name in versions), has_room)


def channels(previous: Snapshot | None, wanted: Snapshot, *replicas: Replica) -> dict[str, str]:
    return dict(hold(previous, wanted, {POOL: replicas}).snapshot.models[0].channels)


OLD, NEW = snapshot("v1", stable="v1"), snapshot("v1", "v2", stable="v2")


def test_a_flip_waits_for_half_of_the_replicas() -> None:
    assert channels(OLD, NEW, replica("v1"), replica("v1"), replica("v1", "v2"))["stable"] == "v1"
    assert channels(OLD, NEW, replica("v1"), replica("v1", "v2"), replica("v1", "v2")) == {"stable": "v2"}


def test_what_is_held_is_told_and_loaded_before_what_no_channel_names() -> None:
    held = hold(OLD, NEW, {POOL: (replica("v1"),)})
    assert held.flips == ("acme/bot:stable stays v1 until v2 is loaded",)
    assert held.snapshot.models[0].channels == {INCOMING: "v2", "stable": "v1"}


def test_a_version_that_is_gone_stays_for_as_long_as_its_channel_is_held() -> None:
    only_new = snapshot("v2", stable="v2")
    held = hold(OLD, only_new, {POOL: (replica("v1"),)}).snapshot.models[0]
    assert [entry.name for entry in held.versions] == ["v1", "v2"]
    done = hold(hold(OLD, only_new, {POOL: (replica("v1"),)}).snapshot, only_new, {POOL: (replica("v1", "v2"),)})
    assert done.snapshot == only_new
    assert done.flips == ()


def test_nothing_is_held_where_the_old_version_serves_nobody() -> None:
    assert channels(OLD, NEW) == {"stable": "v2"}
    assert channels(OLD, NEW, replica("v3")) == {"stable": "v2"}


def test_nothing_is_held_where_there_is_no_room_for_both() -> None:
    assert channels(OLD, NEW, replica("v1"), replica("v1", has_room=False)) == {"stable": "v2"}


def test_new_models_new_channels_and_moved_pools_are_not_held() -> None:
    assert channels(None, NEW, replica("v1")) == {"stable": "v2"}
    assert channels(OLD, snapshot("v1", "v2", stable="v1", next="v2"), replica("v1")) == {"stable": "v1", "next": "v2"}
    moved = snapshot("v1", "v2", pool="other", stable="v2")
    assert hold(OLD, moved, {POOL: (replica("v1"),), PoolName("other"): ()}).flips == ()


def test_a_version_whose_artifact_is_another_now_is_followed_at_once() -> None:
    """Its name can mean one thing at a time: a version is one artifact for ever, save in a workshop."""
    again = snapshot(entries=(version("v1", DIGESTS["v3"]),), stable="v1")
    assert hold(OLD, again, {POOL: (replica("v1"),)}).snapshot == again


def test_only_a_channel_that_moves_is_worth_a_question() -> None:
    assert flips(OLD, NEW)
    assert not flips(OLD, OLD)
    assert not flips(None, NEW)
    assert not flips(OLD, snapshot("v1", "v2", stable="v1"))


def test_replicas_that_are_not_ready_do_not_count() -> None:
    def beat(name: str, phase: str, reason: str = "") -> Heartbeat:
        return Heartbeat(
            replica_id=name, pool="base", host="h", port=1, phase=phase, sequence=0, incarnation=0,  # type: ignore[arg-type]
            sent_unix_s=0.0, adapters=(version("v1").engine_name,), reason=reason,
        )  # fmt: skip

    full = "acme/x@sha256:1: over this replica's limit of 8 adapters"
    serving = serving_of([beat("a", "ready"), beat("b", "draining"), beat("c", "ready", full)])
    assert serving == {POOL: (replica("v1"), replica("v1", has_room=False))}


def test_an_agents_words_for_no_room_are_the_ones_that_are_looked_for() -> None:
    from functions.controller.holding import NO_ROOM
    from functions.decisions.adapters import AdapterPolicy, AdapterState, EngineAdapters, WantedAdapter, Wishes, plan

    wanted = Wishes.of(WantedAdapter(EngineName(f"a{n}"), DIGESTS["v1"], "s3://x", "moving") for n in range(2))
    made = plan(wanted, EngineAdapters(frozenset()), AdapterState(), 0.0, AdapterPolicy(max_adapters=1))
    assert NO_ROOM in made.reason


names = st.sampled_from(["v1", "v2", "v3"])


@given(old=names, new=names, loaded=st.lists(st.sets(names), max_size=4))
def test_a_channel_never_leaves_what_is_served_for_what_is_not(old: str, new: str, loaded: list[set[str]]) -> None:
    replicas = [replica(*sorted(each)) for each in loaded]
    chosen = channels(snapshot("v1", "v2", "v3", stable=old), snapshot("v1", "v2", "v3", stable=new), *replicas)[
        "stable"
    ]
    assert chosen in (old, new)
    had = any(old in each for each in loaded)
    assert not (had and chosen != old and not any(chosen in each for each in loaded))
