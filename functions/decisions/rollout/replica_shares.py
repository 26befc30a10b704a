"""Replicas of a base's versions while one follows another: how many of each, and what share they bear. Pure.

An adapter's new version is loaded beside the old one; a base's takes a replica of its own. So a pool of N replicas has,
with S more for as long as a rollout lasts (its surge; 0 where no accelerator is idle):

    of the new version    C = ceil(N x percent / 100), 1 at least, and N + S - 1 at most: one of the old stays
    of the old one        N + S - C

A stage that has passed needs the replicas of the next one first, or those that are there would get all of it. They are
changed one by one, and the share follows what is ready: between the stage's percent and the next one's,

    share = ready of the new x 100 / ready of both

The next stage begins when its share is borne, give or take the one replica that is being changed; but not on a single
replica where more are to come, which would be all that new sessions have for as long as the others are changed:

    100 x ready of the new >= next percent x (ready of both - 1),    and two of the new, where C is two or more

Worked example (test_worked_example_of_four_replicas): N = 4, S = 1, stages 10, 50 and 100 %. At 10 %: 1 new and 4 old.
10 % has passed: 2 new; with 2 and 3 ready the share is 40 %, and 200 >= 50 x 4: the stage of 50 % begins. That passed:
4 new and 1 old, of which 3 and 1 are ready on the way: 75 %. With 4 and 1 all of it is borne, and the rollout ends. The
one that is left answers at once whatever is taken back until then.
Worked example (test_two_replicas_end_with_two): N = 2, S = 1, stages 10 and 100 %. At 10 %: 1 new and 2 old. It has
passed, and one of the old is changed: 1 new and 1 old are ready, and 100 >= 100 x 1, but C is 2: it ends with both.

Neighbours: `evaluation` lets stages pass; targets start and end replicas.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import ceil

import msgspec

from functions.api.ids import DEFAULT_CHANNEL, RolloutId, is_incoming
from functions.api.snapshot import ModelEntry, Snapshot
from functions.decisions.rollout.lifecycle import Rollout


@dataclass(frozen=True, slots=True)
class VersionShares:
    """How many replicas of which versions a pool should have."""

    main: str  # a version's name: what all have that have no other
    others: Mapping[str, int]  # so many of each other version
    is_moving: bool = False  # a rollout is under way: there may be a surge

    @property
    def others_total(self) -> int:
        return sum(self.others.values())


def next_percent(rollout: Rollout) -> int:
    """Of the stage after this one."""
    stages = rollout.policy.stages
    return stages[min(rollout.stage + 1, len(stages) - 1)].percent


def is_borne(percent: int, candidates: int, controls: int, aim: int = 1) -> bool:
    """Whether the replicas that are ready bear so much of the pool's requests. `aim`: how many of the new version's
    there are to be; 1 where that is not known."""
    return candidates >= max(1, min(2, aim)) and 100 * candidates >= percent * (candidates + controls - 1)


def aims(base: ModelEntry, rollouts: Iterable[Rollout], shares: VersionShares) -> dict[RolloutId, int]:
    """How many replicas of its new version a pool should have now, for each of the base's rollouts."""
    return {row.id: shares.others.get(row.to_version, 0) for row in rollouts if row.model == base.id}


def share_percent(rollout: Rollout, candidates: int, controls: int, *, widens: bool) -> int:
    """What gateways send to the new version now, of 1 to 99; 0 for a rollout that sends nothing there."""
    if not rollout.percent or not widens:
        return min(99, rollout.percent)
    share = 100 * candidates // max(1, candidates + controls)
    return min(99, max(rollout.percent, min(share, next_percent(rollout))))


def with_shares(snapshot: Snapshot, shares: Mapping[RolloutId, int]) -> Snapshot:
    """What is published, with the percents that replicas bear in place of the stages' own."""
    if not shares:
        return snapshot
    models = tuple(_shared(model, shares) if model.splits else model for model in snapshot.models)
    return msgspec.structs.replace(snapshot, models=models)


def _shared(model: ModelEntry, shares: Mapping[RolloutId, int]) -> ModelEntry:
    splits = tuple(
        msgspec.structs.replace(split, percent=shares.get(split.rollout) or split.percent) for split in model.splits
    )
    return model if splits == model.splits else msgspec.structs.replace(model, splits=splits)


def wanted_shares(
    base: ModelEntry,
    rollouts: Iterable[Rollout],
    widening: Collection[RolloutId],
    replicas: int,
    surge: int,
) -> VersionShares | None:
    """Of a pool that should have so many `replicas`; None while the base has no channel, or a split of what is over.
    `rollouts` are all that are active, `widening` those whose stage has passed."""
    rollouts = tuple(rollouts)
    named = {channel: version for channel, version in base.channels.items() if not is_incoming(channel)}
    if not named or not {split.rollout for split in base.splits} <= {row.id for row in rollouts}:
        return None
    main = named.get(DEFAULT_CHANNEL) or named[min(named)]
    others = {version: 1 for version in named.values() if version != main}
    moving = {row.channel: row for row in rollouts if row.model == base.id and row.is_active}
    for channel, row in moving.items():
        if channel not in named or row.to_version == main or not _serves(base, row):
            continue
        percent = next_percent(row) if row.id in widening else row.current.percent
        others[row.to_version] = max(others.get(row.to_version, 1), ceil(replicas * percent / 100))
    flipped = {version for channel, version in base.channels.items() if is_incoming(channel)} - {main, *others}
    others |= dict.fromkeys(flipped, ceil(replicas / 2))  # without stages: what `holding` waits for
    return VersionShares(main, _bounded(others, replicas + surge - 1), is_moving=bool(moving or flipped))


def _serves(base: ModelEntry, row: Rollout) -> bool:
    """One that is paused before it was loaded serves nobody; one whose version is not published yet cannot."""
    return (row.state != "paused" or row.loaded) and any(each.name == row.to_version for each in base.versions)


def _bounded(others: Mapping[str, int], most: int) -> dict[str, int]:
    """The first by name, where there are more than may be."""
    kept: dict[str, int] = {}
    for version, count in sorted(others.items()):
        granted = min(count, max(0, most - sum(kept.values())))
        if granted:
            kept[version] = granted
    return kept
