"""Steering of rollouts: from declarations and rollout rows to the gateways' channels and splits. Pure functions.

It also returns the commands for the registry. Three values decide each channel's version: T, its declared target; R,
the channel's last rollout with its state; P, its version in the previous snapshot. The first matching line applies:

    R active, created by the API            R's place
    R active, T is its target               R's place
    R active, T is its start                its start, and R is withdrawn
    R active, T is another version          R is superseded; a move from P (if that is R's, from its start) to T
    R rolled back, T is its target          its start: it stays halted until T changes or R is resumed
    R rolled back, T is another version     R is superseded; then as without R
    R completed, T is its target            T
    P is T, or there is no P and no R       T
    otherwise                               a move from P (without P: from R's end) to T

R's place: the channel points at R's start. While the new version loads, `incoming` names it; once loaded, the split
sends R's share to it. Versions that R needs stay, even if they are no longer declared. A rollout that was paused
before its version was loaded serves no requests and needs no engine memory: `incoming` names the version again when
it is resumed. A move is a new rollout if the policy has several stages: until its row exists, nothing changes. With
one stage it is a plain flip, which `functions.controller.snapshot.holding` delays until the version is loaded.

Laws (tests/decisions/rollout/test_rollout_steering.py): no split without a row; if rows are unknown, no channel with
stages moves; a model or channel that is no longer declared withdraws its rollouts, but a missing artifact does not.
Neighbours: `lifecycle` has the rows' states; the controller carries out the commands and publishes the snapshot.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from functions.api.ids import INCOMING, Digest, EngineName, ModelId, RolloutId, engine_name, is_incoming
from functions.api.snapshot import ModelEntry, RolloutEntry, Snapshot, SplitEntry, VersionEntry
from functions.decisions.catalogue_policies import DEFAULT_ROLLOUT
from functions.decisions.rollout.events import AnyEvent, Superseded, Withdrawn
from functions.decisions.rollout.lifecycle import Rollout, RolloutSpec, id_of

ChannelOf = tuple[ModelId, str]


@dataclass(frozen=True, slots=True)
class Create:
    spec: RolloutSpec


@dataclass(frozen=True, slots=True)
class PostEvent:
    """An event for a row; ignored if the row has changed since."""

    rollout: RolloutId
    lock_version: int
    event: AnyEvent


Command = Create | PostEvent


@dataclass(frozen=True, slots=True)
class Rows:
    """Last rollout of each channel, from the registry; `are_known` is False before the first answer."""

    latest: Mapping[ChannelOf, Rollout] = field(default_factory=dict)
    are_known: bool = True


@dataclass(frozen=True, slots=True)
class Steered:
    snapshot: Snapshot
    commands: tuple[Command, ...] = ()
    rollouts: tuple[Rollout, ...] = ()  # active or rolled back
    held: tuple[str, ...] = ()  # moves that wait for the registry, as sentences


@dataclass(slots=True)
class _ChannelState:
    """Versions and split that one channel shows."""

    version: VersionEntry
    split: SplitEntry | None = None
    incoming: VersionEntry | None = None
    is_loading: bool = True  # otherwise `incoming` is only kept available
    commands: tuple[Command, ...] = ()
    held: str = ""

    @property
    def versions(self) -> Iterator[VersionEntry]:
        yield self.version
        if self.incoming is not None:
            yield self.incoming


def steer(
    previous: Snapshot | None,
    wanted: Snapshot,
    declared: Mapping[ModelId, Mapping[str, str]],
    rows: Rows,
    *,
    bases: Collection[ModelId] | None = None,
) -> Steered:
    """Return the snapshot to publish, with channels at their rollouts' places, and the commands for the registry that
    start or end rollouts.

    `wanted` is the compiled snapshot; `declared` has each model's channels in git, with or without artifacts.
    `bases`: base models whose versions have their own replicas, so that they move by stages as adapters do; None:
    all. A base with an active rollout always moves by stages.
    """
    under_way = {model for (model, _), row in rows.latest.items() if row.is_active}
    before = {model.id: model for model in (previous.models if previous is not None else ())}
    policies = {entry.name: entry for entry in wanted.rollouts}
    models: list[ModelEntry] = []
    places: list[_ChannelState] = []
    for model in wanted.models:
        policy = policies.get(model.rollout, DEFAULT_ROLLOUT)
        steering = _Model(model, before.get(model.id), declared.get(model.id), policy, rows)
        by_stages = model.type == "lora" or bases is None or model.id in bases or model.id in under_way
        own = steering.places() if by_stages else {}
        places += own.values()
        models.append(_shown(model, own))
    commands = [command for place in places for command in place.commands]
    commands += _withdrawn(declared, rows)
    return Steered(
        msgspec.structs.replace(wanted, models=tuple(models)),
        tuple(commands),
        tuple(_reported_rollouts(wanted, rows)),
        tuple(place.held for place in places if place.held),
    )


def follow_rollouts(current: Snapshot, rows: Rows) -> Snapshot:
    """Return the published snapshot with channels moved to their rollouts' places, and no other declared changes.

    So a version is rolled back even if its declaration is suspended, rejected or unavailable. A channel moves only if
    it is at its rollout's start; one that was flipped since belongs to the declaration.
    """
    models = tuple(_moved_with(model, rows) for model in current.models)
    return msgspec.structs.replace(current, models=models)


def _moved_with(model: ModelEntry, rows: Rows) -> ModelEntry:
    splits = {split.channel: split for split in model.splits}
    named = {version for channel, version in model.channels.items() if is_incoming(channel)}
    places: dict[str, _ChannelState] = {}
    for channel, name in model.channels.items():
        row, split, here = rows.latest.get((model.id, channel)), splits.get(channel), _named(model, name)
        if row is None or row.pool != model.pool or _has_another(model, _start_of(row), _end_of(row)):
            continue
        if row.is_active and here.digest == row.from_digest:
            place = places[channel] = _at(row)
            if split is None and row.to_version in named:
                place.incoming = None  # a channel names it already
        elif split is not None and not row.is_active:
            is_through = row.state == "completed" and split.rollout == row.id
            places[channel] = _ChannelState(_end_of(row) if is_through else here)
    return _shown(model, places) if places else model


@dataclass(frozen=True, slots=True)
class _Model:
    """Channels of one model, each decided on its own."""

    entry: ModelEntry
    before: ModelEntry | None
    declared: Mapping[str, str] | None  # None if git does not declare it
    policy: RolloutEntry
    rows: Rows

    def places(self) -> dict[str, _ChannelState]:
        channels = dict(self.entry.channels)
        places = {channel: self._place(channel, _named(self.entry, name)) for channel, name in channels.items()}
        for channel in (self.declared or {}).keys() - channels.keys():
            standing_in = self._where_it_was(channel)
            if standing_in is not None:
                places[channel] = standing_in
        return places

    def _where_it_was(self, channel: str) -> _ChannelState | None:
        """Return the present place of a channel whose declared version has no artifact; None if the channel was not
        there, or its version's name has another artifact."""
        row = self.rows.latest.get((self.entry.id, channel))
        if row is not None and row.is_active:
            return _at(row)
        was = self._previous(channel)
        if was is None or self._is_another(was):
            return None
        return _ChannelState(was, held=f"{self.entry.id}:{channel} stays {was.name}: what is declared has no artifact")

    def _place(self, channel: str, target: VersionEntry) -> _ChannelState:
        row = self.rows.latest.get((self.entry.id, channel))
        was = self._previous(channel)
        if row is not None and row.is_active:
            return self._under_way(channel, target, row)
        previous_id = row.id if row is not None else ""
        if row is not None and was is not None and was.digest not in {row.from_digest, row.to_digest}:
            row = None  # flipped without a rollout since
        if row is not None and row.to_digest == target.digest and row.to_version == target.name:
            if row.state == "rolled_back" and not self._is_another(_start_of(row)):
                return _ChannelState(_start_of(row))
            if row.state == "completed":
                return _ChannelState(target)
        start = was
        if start is None and row is not None:
            start = _end_of(row) if row.state == "completed" else _start_of(row)
        place = self._moved(channel, start, target, previous_id)
        is_over = row is not None and row.state == "rolled_back" and self.declared is not None
        return _after_superseding(row, place) if row is not None and is_over else place

    def _under_way(self, channel: str, target: VersionEntry, row: Rollout) -> _ChannelState:
        if row.pool != self.entry.pool or self._is_another(_start_of(row)) or self._is_another(_end_of(row)):
            return _ChannelState(target, commands=(_post(row, Superseded()),))
        if self.declared is None or (row.to_digest == target.digest and row.to_version == target.name):
            return _at(row)
        if row.from_digest == target.digest:
            reason = f"{self.entry.declared_in or 'git'} points {channel} at {target.name} again"
            return _ChannelState(target, commands=(_post(row, Withdrawn(reason)),))
        was = self._previous(channel)
        start = was if was is not None and was.digest not in {row.from_digest, row.to_digest} else _start_of(row)
        place = self._moved(channel, start, target, row.id)
        return _after_superseding(row, place)

    def _moved(self, channel: str, start: VersionEntry | None, target: VersionEntry, previous_id: str) -> _ChannelState:
        """Return the channel's place on the way from `start` to `target`, or at the target if it moves at once (nothing
        to compare, one stage, or not declared). It stays at the start until the registry has the rollout."""
        if start is None or start.digest == target.digest or self._is_another(start):
            return _ChannelState(target)
        if len(self.policy.stages) == 1 or self.declared is None:
            return _ChannelState(target)
        held = f"{self.entry.id}:{channel} stays {start.name}: the registry has not reported its rollouts"
        if not self.rows.are_known:
            return _ChannelState(start, held=held)
        spec = RolloutSpec(
            model=self.entry.id,
            channel=channel,
            pool=self.entry.pool,
            from_version=start.name,
            from_digest=start.digest,
            from_artifact_uri=start.artifact_uri,
            to_version=target.name,
            to_digest=target.digest,
            to_artifact_uri=target.artifact_uri,
            policy=self.policy,
            origin="git",
            previous=previous_id,
        )
        words = f"{self.entry.id}:{channel} stays {start.name} until the registry has the rollout to {target.name}"
        return _ChannelState(start, commands=(Create(spec),), held=words)

    def _previous(self, channel: str) -> VersionEntry | None:
        """Return the version that the channel has in the previously published snapshot, or None if it is not there or
        the model was in another pool."""
        if self.before is None or self.before.pool != self.entry.pool or channel not in self.before.channels:
            return None
        return _named(self.before, self.before.channels[channel])

    def _is_another(self, version: VersionEntry) -> bool:
        """Return True if the version's name has another artifact in the declared model: a workshop's, which is followed
        directly."""
        return _has_another(self.entry, version)


def _at(row: Rollout) -> _ChannelState:
    """Return the place of an active rollout's channel, with a split once requests go to the new version."""
    place = _ChannelState(_start_of(row), incoming=_end_of(row), is_loading=row.state == "loading")
    if row.percent:
        place.split = SplitEntry(row.channel, row.id, row.trial, row.percent, row.to_version, row.policy.sticky)
    return place


def _has_another(model: ModelEntry, *versions: VersionEntry) -> bool:
    return any(own.name == one.name and own.digest != one.digest for own in model.versions for one in versions)


def _shown(model: ModelEntry, places: Mapping[str, _ChannelState]) -> ModelEntry:
    """Return the model with its channels at their places; other channels stay."""
    is_still = all(place.split is None and place.incoming is None for place in places.values())
    is_there = all(model.channels.get(channel) == place.version.name for channel, place in places.items())
    if is_still and is_there and not model.splits:
        return model
    versions = {version.name: version for version in model.versions}
    channels = dict(model.channels)
    splits = [split for split in model.splits if split.channel not in places]
    for channel, place in sorted(places.items()):
        versions = {version.name: version for version in place.versions} | versions
        channels[channel] = place.version.name
        if place.split is not None:
            splits.append(place.split)
        elif place.incoming is not None and place.is_loading:
            channels[_incoming_name(channels)] = place.incoming.name
    return msgspec.structs.replace(
        model,
        versions=tuple(versions[name] for name in sorted(versions)),
        channels=dict(sorted(channels.items())),
        splits=tuple(sorted(splits, key=lambda split: split.channel)),
    )


def _incoming_name(channels: Mapping[str, str]) -> str:
    """Return `incoming`, or the next name that no channel has: two channels may load together."""
    names = [INCOMING, *(f"{INCOMING}-{number}" for number in range(2, len(channels) + 3))]
    return next(name for name in names if name not in channels)


def _withdrawn(declared: Mapping[ModelId, Mapping[str, str]], rows: Rows) -> Iterator[Command]:
    """Yield commands that end git's rollouts of models or channels that are no longer declared."""
    for (model_id, channel), row in sorted(rows.latest.items()):
        if row.origin == "git" and channel not in declared.get(model_id, {}):
            if row.is_active:
                yield _post(row, Withdrawn(f"{model_id}:{channel} is not declared any more"))
            elif row.state == "rolled_back":
                yield _post(row, Superseded())


def _reported_rollouts(wanted: Snapshot, rows: Rows) -> Iterable[Rollout]:
    shown = {model.id: model.channels for model in wanted.models}
    for (model_id, channel), row in sorted(rows.latest.items()):
        if row.is_active or (row.state == "rolled_back" and shown.get(model_id, {}).get(channel) == row.to_version):
            yield row


def _after_superseding(row: Rollout, place: _ChannelState) -> _ChannelState:
    """Return the place with a command before its others that supersedes the ended rollout, so that the channel's next
    one may begin."""
    created = next((id_of(command.spec) for command in place.commands if isinstance(command, Create)), "")
    return replace(place, commands=(_post(row, Superseded(created)), *place.commands))


def _post(row: Rollout, event: AnyEvent) -> PostEvent:
    return PostEvent(row.id, row.lock_version, event)


def _start_of(row: Rollout) -> VersionEntry:
    return VersionEntry(row.from_version, row.from_digest, _engine_name_of(row, row.from_digest), row.from_artifact_uri)


def _end_of(row: Rollout) -> VersionEntry:
    return VersionEntry(row.to_version, row.to_digest, _engine_name_of(row, row.to_digest), row.to_artifact_uri)


def _engine_name_of(row: Rollout, digest: Digest) -> EngineName:
    """Return the engine's model name: all versions of a base have their pool's name."""
    return EngineName(row.pool) if row.model == row.pool else engine_name(row.model, digest)


def _named(model: ModelEntry, name: str) -> VersionEntry:
    return next(version for version in model.versions if version.name == name)
