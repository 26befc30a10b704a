"""From what is declared and where the rollouts are to what gateways see: channels, splits, and what to tell the
registry. Pure.

For each channel there are three answers to "which version": T, where it should end (declared); R, the
last rollout of the channel with its state; P, where it is (the snapshot before). The first line that fits holds:

    R active, of the API                    R's place
    R active, T is its target               R's place
    R active, T is where it came from       from, and R is withdrawn
    R active, T is something else           R is superseded; a move from P (if that is R's, from its start) to T
    R rolled back, T is its target          from: it stays halted until T changes or somebody resumes it
    R rolled back, T is something else      R is superseded; then as if it had never been
    R completed, T is its target            T
    P is T, or there is no P and no R       T
    otherwise                               a move from P (without P: from where R ended) to T

R's place: the channel points at R's start. While the new version loads, `incoming` names it; when it is loaded, the
split sends R's share to it. Versions that R needs stay, although nobody declares them any more. One that is paused
before its version was loaded serves nobody and asks for no place in an engine: `incoming` names it again when it is
resumed.
A move is a new rollout where the policy has several stages: until its row is there, nothing flips. With one stage it is
a plain flip, which `functions.controller.snapshot.holding` holds until the version is loaded.

Laws (tests/decisions/rollout/test_rollout_steering.py): no split that no row says; where rows are not known nothing
that has stages moves; a model or channel that nobody declares withdraws its rollouts, one whose artifact is only
missing does not.
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
    """An event for a row; nothing happens where the row has moved on."""

    rollout: RolloutId
    lock_version: int
    event: AnyEvent


Command = Create | PostEvent


@dataclass(frozen=True, slots=True)
class Rows:
    """The last rollout of each channel, as the registry told; `are_known` is False before it ever did."""

    latest: Mapping[ChannelOf, Rollout] = field(default_factory=dict)
    are_known: bool = True


@dataclass(frozen=True, slots=True)
class Steered:
    snapshot: Snapshot
    commands: tuple[Command, ...] = ()
    rollouts: tuple[Rollout, ...] = ()  # under way or halted
    held: tuple[str, ...] = ()  # moves that wait for the registry, in words


@dataclass(slots=True)
class _ChannelState:
    """What one channel shows."""

    version: VersionEntry
    split: SplitEntry | None = None
    incoming: VersionEntry | None = None
    is_loading: bool = True  # else `incoming` is only kept
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
    """`wanted` is what was compiled; `declared` the channels of each model in git, whether their artifacts are there
    or not. `bases`: those whose versions have replicas of their own, so that they go by stages as adapters do; None:
    all of them. One that is on its way stays there in any case."""
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
        tuple(_to_tell(wanted, rows)),
        tuple(place.held for place in places if place.held),
    )


def moved_with(current: Snapshot, rows: Rows) -> Snapshot:
    """What is published, with the channels where their rollouts are by now, and nothing else that anybody declared
    since: a version is taken back whatever is suspended, refused or away.

    Only a channel that stands where its rollout began moves; one that was flipped since is the declaration's.
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
                place.incoming = None  # it is named already
        elif split is not None and not row.is_active:
            is_through = row.state == "completed" and split.rollout == row.id
            places[channel] = _ChannelState(_end_of(row) if is_through else here)
    return _shown(model, places) if places else model


@dataclass(frozen=True, slots=True)
class _Model:
    """One model's channels, each on its own."""

    entry: ModelEntry
    before: ModelEntry | None
    declared: Mapping[str, str] | None  # None: git does not declare it
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
        """Of a channel whose declared version has no artifact: it stays where it is."""
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
            row = None  # it was flipped without a rollout since
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
        """On the way from `start` to `target`, or there already."""
        if start is None or start.digest == target.digest or self._is_another(start):
            return _ChannelState(target)
        if len(self.policy.stages) == 1 or self.declared is None:
            return _ChannelState(target)
        held = f"{self.entry.id}:{channel} stays {start.name}: the registry does not tell of its rollouts"
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
        """Where the channel was, if the model was in this pool."""
        if self.before is None or self.before.pool != self.entry.pool or channel not in self.before.channels:
            return None
        return _named(self.before, self.before.channels[channel])

    def _is_another(self, version: VersionEntry) -> bool:
        """Whether its name means another artifact now: a workshop's, and followed at once."""
        return _has_another(self.entry, version)


def _at(row: Rollout) -> _ChannelState:
    """The rollout's place."""
    place = _ChannelState(_start_of(row), incoming=_end_of(row), is_loading=row.state == "loading")
    if row.percent:
        place.split = SplitEntry(row.channel, row.id, row.trial, row.percent, row.to_version, row.policy.sticky)
    return place


def _has_another(model: ModelEntry, *versions: VersionEntry) -> bool:
    return any(own.name == one.name and own.digest != one.digest for own in model.versions for one in versions)


def _shown(model: ModelEntry, places: Mapping[str, _ChannelState]) -> ModelEntry:
    """The model with its channels where they are; the others as they were."""
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
    """`incoming`, or the next that is free: two channels may load at once."""
    names = [INCOMING, *(f"{INCOMING}-{number}" for number in range(2, len(channels) + 3))]
    return next(name for name in names if name not in channels)


def _withdrawn(declared: Mapping[ModelId, Mapping[str, str]], rows: Rows) -> Iterator[Command]:
    """Rollouts of git's whose model or channel nobody declares any more."""
    for (model_id, channel), row in sorted(rows.latest.items()):
        if row.origin == "git" and channel not in declared.get(model_id, {}):
            if row.is_active:
                yield _post(row, Withdrawn(f"{model_id}:{channel} is not declared any more"))
            elif row.state == "rolled_back":
                yield _post(row, Superseded())


def _to_tell(wanted: Snapshot, rows: Rows) -> Iterable[Rollout]:
    shown = {model.id: model.channels for model in wanted.models}
    for (model_id, channel), row in sorted(rows.latest.items()):
        if row.is_active or (row.state == "rolled_back" and shown.get(model_id, {}).get(channel) == row.to_version):
            yield row


def _after_superseding(row: Rollout, place: _ChannelState) -> _ChannelState:
    """The channel goes elsewhere than the rollout: one is over before the other begins."""
    created = next((id_of(command.spec) for command in place.commands if isinstance(command, Create)), "")
    return replace(place, commands=(_post(row, Superseded(created)), *place.commands))


def _post(row: Rollout, event: AnyEvent) -> PostEvent:
    return PostEvent(row.id, row.lock_version, event)


def _start_of(row: Rollout) -> VersionEntry:
    return VersionEntry(row.from_version, row.from_digest, _called(row, row.from_digest), row.from_artifact_uri)


def _end_of(row: Rollout) -> VersionEntry:
    return VersionEntry(row.to_version, row.to_digest, _called(row, row.to_digest), row.to_artifact_uri)


def _called(row: Rollout, digest: Digest) -> EngineName:
    """By its engines: all versions of a base are called as their pool is."""
    return EngineName(row.pool) if row.model == row.pool else engine_name(row.model, digest)


def _named(model: ModelEntry, name: str) -> VersionEntry:
    return next(version for version in model.versions if version.name == name)
