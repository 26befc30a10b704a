"""Replicas of a base's versions during a rollout: the number of each, and the share that they can serve.

An adapter's new version is loaded beside the old one; a base's new version needs its own replicas. A pool of N
replicas has S more during a rollout (its surge; 0 if no accelerator is idle):

    of the new version    C = ceil(N x percent / 100), 1 at least, and N + S - 1 at most: one of the old stays
    of the old one        N + S - C

A stage that has passed first gets the replicas of the next one; otherwise the present ones would receive all of its
share. Replicas change one by one, and the share follows the ready ones, between the two stages' percents:

    share = ready of the new x 100 / ready of both

The next stage begins when its share can be served, allowing for the one replica that is changing. If more than one
new replica is planned, a single one is not enough: it would get all new sessions while the others change:

    100 x ready of the new >= next percent x (ready of both - 1),    and two of the new if C is two or more

Worked example (test_worked_example_of_four_replicas): N = 4, S = 1, stages 10, 50 and 100 %. At 10 %: 1 new and 4
old. 10 % has passed: 2 new; with 2 and 3 ready the share is 40 %, and 200 >= 50 x 4: the stage of 50 % begins. It
passes: 4 new and 1 old, with 3 and 1 ready on the way: 75 %. With 4 and 1 all is served, and the rollout ends. The
remaining old replica serves a rollback until then. Worked example (test_two_replicas_end_with_two): N = 2, S = 1,
stages 10 and 100 %. At 10 %: 1 new and 2 old. It has passed, and one of the old is changed: 1 new and 1 old are
ready, and 100 >= 100 x 1, but C is 2: it ends with both.

Neighbours: `evaluation` passes stages; targets start and end replicas.
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
    """Number of replicas that a pool should have of each version."""

    main: str  # version of all other replicas
    others: Mapping[str, int]  # count of each other version
    is_moving: bool = False  # a rollout is running: there may be a surge

    @property
    def others_total(self) -> int:
        return sum(self.others.values())


def next_percent(rollout: Rollout) -> int:
    """Return the percent of the stage after the present one; of the last stage if there is none."""
    stages = rollout.policy.stages
    return stages[min(rollout.stage + 1, len(stages) - 1)].percent


def can_serve_share(percent: int, candidates: int, controls: int, aim: int = 1) -> bool:
    """Return True if the ready replicas can serve `percent` of the pool's requests.

    `aim`: planned replicas of the new version; 1 while unknown.
    """
    return candidates >= max(1, min(2, aim)) and 100 * candidates >= percent * (candidates + controls - 1)


def candidate_targets(base: ModelEntry, rollouts: Iterable[Rollout], shares: VersionShares) -> dict[RolloutId, int]:
    """Return by rollout of the base the number of planned replicas of its new version; 0 if none are planned."""
    return {row.id: shares.others.get(row.to_version, 0) for row in rollouts if row.model == base.id}


def share_percent(rollout: Rollout, candidates: int, controls: int, *, widens: bool) -> int:
    """Return the percent sent to the new version now, at most 99; 0 for a rollout that sends nothing there. If the
    rollout `widens`, it grows with the replicas up to the next stage's."""
    if not rollout.percent or not widens:
        return min(99, rollout.percent)
    share = 100 * candidates // max(1, candidates + controls)
    return min(99, max(rollout.percent, min(share, next_percent(rollout))))


def with_shares(snapshot: Snapshot, shares: Mapping[RolloutId, int]) -> Snapshot:
    """Return the snapshot with the percents that replicas can serve, `shares` by rollout, instead of the stages'
    own."""
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
    """Return how many of a pool's `replicas` should have each version; None if the base has no channel or a split of an
    ended rollout.

    `rollouts` are all active ones, `widening` those whose stage has passed.
    """
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
    others |= dict.fromkeys(flipped, ceil(replicas / 2))  # without stages: `holding` waits for these
    return VersionShares(main, _bounded(others, replicas + surge - 1), is_moving=bool(moving or flipped))


def _serves(base: ModelEntry, row: Rollout) -> bool:
    """Return False for a rollout paused before loading, or whose new version is not published yet."""
    return (row.state != "paused" or row.loaded) and any(each.name == row.to_version for each in base.versions)


def _bounded(others: Mapping[str, int], most: int) -> dict[str, int]:
    """Return the replica counts by version, with their total limited to `most`, in order of version name."""
    kept: dict[str, int] = {}
    for version, count in sorted(others.items()):
        granted = min(count, max(0, most - sum(kept.values())))
        if granted:
            kept[version] = granted
    return kept
