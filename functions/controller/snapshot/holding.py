"""Hold back the flip of a channel until its new version is loaded; until then callers get the old version. Pure.

A snapshot that adds a version and points a channel at it in one step would leave callers without an answer while the
version loads. Therefore the first snapshot has the version, but the channel stays. When at least half of the pool's
ready replicas have the version loaded, a second snapshot has the flip.

Worked example (test_channel_flip_waits_for_half_of_the_replicas): stable moves v1 -> v2, three replicas are ready
and have v1. With v2 on one of them stable stays v1; with v2 on two it becomes v2.

No flip is held if that helps no caller: if no ready replica has the old version, or if more than half of them report
no room for the new one (`Heartbeat.adapters_without_room`), so that waiting would never end. An older agent does not
name the versions: if its reason mentions missing room, it counts as having no room for this one. A held version is
loaded before versions that no channel names, because the channel `incoming` points at it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from functions.api.ids import INCOMING, EngineName, PoolName
from functions.api.snapshot import ModelEntry, Snapshot, VersionEntry
from functions.fleet.heartbeat import Heartbeat

NO_ROOM = "over this replica's limit"  # text in an older agent's reason


@dataclass(frozen=True, slots=True)
class LoadedReplica:
    """Adapters and weights that one ready replica has loaded, and adapters for which it has no room."""

    adapters: frozenset[EngineName]
    without_room: frozenset[EngineName] = frozenset()  # adapters requested ahead for which it has no slot
    weights: str = ""  # digest of the base's weights; empty: not reported
    is_full: bool = False  # from an older agent: some adapter, which it does not name, has no slot

    def has_no_room_for(self, name: EngineName) -> bool:
        return self.is_full or name in self.without_room


Serving = Mapping[PoolName, tuple[LoadedReplica, ...]]


@dataclass(frozen=True, slots=True)
class HeldFlips:
    snapshot: Snapshot
    flips: tuple[str, ...]  # descriptions; empty if no flip is held


def serving_of(replicas: Iterable[Heartbeat]) -> Serving:
    """Return the replicas that report ready, with what they have loaded, by pool."""
    by_pool: dict[PoolName, list[LoadedReplica]] = {}
    for heartbeat in replicas:
        if heartbeat.phase == "ready":
            by_pool.setdefault(PoolName(heartbeat.pool), []).append(_replica(heartbeat))
    return {pool: tuple(found) for pool, found in by_pool.items()}


def _replica(heartbeat: Heartbeat) -> LoadedReplica:
    without_room = heartbeat.adapters_without_room
    return LoadedReplica(
        _names(heartbeat.adapters),
        _names(without_room or ()),
        heartbeat.weights_digest,
        is_full=without_room is None and NO_ROOM in heartbeat.reason,
    )


def _names(names: Iterable[str]) -> frozenset[EngineName]:
    return frozenset(EngineName(name) for name in names)


def has_flips(previous: Snapshot | None, wanted: Snapshot) -> bool:
    """Return True if any channel of a previously published model moves to another artifact; only then the loaded
    versions matter."""
    before = _models(previous)
    return any(list(_moved(before[model.id], model)) for model in wanted.models if model.id in before)


def hold_flips(previous: Snapshot | None, wanted: Snapshot, serving: Serving) -> HeldFlips:
    """Return the snapshot to publish now instead of `wanted`: a channel stays where `previous` has it while replicas
    have its old version and fewer than half of the pool's have the new one. It comes with a message for each such
    channel."""
    before = _models(previous)
    models: list[ModelEntry] = []
    messages: list[str] = []
    for model in wanted.models:
        old = before.get(model.id)
        moved = _moved(old, model) if old is not None else ()
        replicas = serving.get(model.pool, ())
        waiting = [flip for flip in moved if _must_wait(model, flip, replicas)]
        models.append(_with_channels_back(model, waiting))
        messages += [
            f"{model.id}:{channel} stays {was.name} until {new.name} is loaded" for channel, was, new in waiting
        ]
    return HeldFlips(msgspec.structs.replace(wanted, models=tuple(models)), tuple(messages))


Flip = tuple[str, VersionEntry, VersionEntry]  # (channel, from, to)


def _moved(old: ModelEntry, new: ModelEntry) -> Iterable[Flip]:
    if old.pool != new.pool or old.channels == new.channels:
        return
    before = {version.name: version for version in old.versions}
    after = {version.name: version for version in new.versions}
    for channel, name in new.channels.items():
        source, target = before.get(old.channels.get(channel, "")), after[name]
        if source is None or source.digest == target.digest:
            continue
        if after.get(source.name, source).digest == source.digest:  # otherwise the name means another artifact now
            yield channel, source, target


def _must_wait(model: ModelEntry, flip: Flip, replicas: tuple[LoadedReplica, ...]) -> bool:
    _, old, new = flip
    if model.type == "base":
        have_old = sum(replica.weights == old.digest for replica in replicas)
        return have_old > 0 and 2 * sum(replica.weights == new.digest for replica in replicas) < len(replicas)
    have_old = sum(old.engine_name in replica.adapters for replica in replicas)
    have_new = sum(new.engine_name in replica.adapters for replica in replicas)
    never_new = sum(replica.has_no_room_for(new.engine_name) for replica in replicas)
    if have_old == 0 or 2 * never_new > len(replicas):
        return False
    return 2 * have_new < len(replicas)


def _with_channels_back(model: ModelEntry, waiting: list[Flip]) -> ModelEntry:
    if not waiting:
        return model
    versions = {version.name: version for version in model.versions}
    versions |= {old.name: old for _, old, _ in waiting}
    channels = {**model.channels, **{channel: old.name for channel, old, _ in waiting}}
    channels.setdefault(INCOMING, waiting[0][2].name)
    ordered = tuple(versions[name] for name in sorted(versions))
    return msgspec.structs.replace(model, versions=ordered, channels=dict(sorted(channels.items())))


def _models(snapshot: Snapshot | None) -> dict[str, ModelEntry]:
    return {model.id: model for model in (snapshot.models if snapshot is not None else ())}
