"""Which adapters of a pool the snapshot knows, and how much each is needed before anyone asks for it.

    moving    a rollout's versions (the channels `incoming`, a split's candidate) and those they are compared with:
              loaded ahead, and kept, so that neither group of a comparison pays for a cold load
    named     what any other channel points at: loaded ahead while there is room
    unnamed   the rest: loaded ahead last, reachable by `@version` all the same

Ranked so that a cut anywhere leaves out the least: moving, then the default channel, other channels, the rest; each by
name, a moving one by its model, so that a new version stands beside the one that it follows. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from functions.api.ids import DEFAULT_CHANNEL, Digest, EngineName, PoolName
from functions.api.snapshot import ModelEntry, Snapshot
from functions.decisions.rollout_steering import INCOMING

Need = Literal["moving", "named", "unnamed"]


@dataclass(frozen=True, slots=True)
class WantedAdapter:
    name: EngineName
    digest: Digest
    artifact_uri: str
    need: Need = "named"


@dataclass(frozen=True, slots=True)
class Wishes:
    """All of a pool's adapters in order of rank, made once a snapshot: a plan a second must not walk ten thousand."""

    ranked: tuple[WantedAdapter, ...] = ()
    by_name: Mapping[EngineName, WantedAdapter] = field(default_factory=dict)
    rank: Mapping[EngineName, int] = field(default_factory=dict)
    moving: tuple[EngineName, ...] = ()
    named: tuple[EngineName, ...] = ()

    @classmethod
    def of(cls, ranked: Iterable[WantedAdapter]) -> "Wishes":
        """`ranked` may name one adapter twice; the first counts."""
        by_name: dict[EngineName, WantedAdapter] = {}
        for wanted in ranked:
            by_name.setdefault(wanted.name, wanted)
        return cls(
            ranked=tuple(by_name.values()),
            by_name=by_name,
            rank={name: rank for rank, name in enumerate(by_name)},
            moving=tuple(wanted.name for wanted in by_name.values() if wanted.need == "moving"),
            named=tuple(wanted.name for wanted in by_name.values() if wanted.need == "named"),
        )


def wanted_in(snapshot: Snapshot, pool: PoolName) -> Wishes:
    """Every adapter version of the pool, the most important first."""
    ranked: list[tuple[int, str, int, EngineName, WantedAdapter]] = []
    for model in snapshot.models:
        if model.type != "lora" or model.pool != pool:
            continue
        controls, arriving = _moving(model)
        for version in model.versions:
            need, rank = _need(model, version.name, controls | arriving)
            wanted = WantedAdapter(version.engine_name, version.digest, version.artifact_uri, need)
            family = model.id if need == "moving" else ""
            ranked.append((rank, family, version.name in arriving, wanted.name, wanted))
    return Wishes.of(entry[-1] for entry in sorted(ranked, key=lambda entry: entry[:-1]))


def _moving(model: ModelEntry) -> tuple[set[str], set[str]]:
    """The versions of a model in rollout: those that serve, and those on their way in."""
    arriving = {split.candidate for split in model.splits}
    controls = {model.channels[split.channel] for split in model.splits if split.channel in model.channels}
    incoming = {version for channel, version in model.channels.items() if _is_incoming(channel)}
    if incoming:
        arriving |= incoming
        controls |= {version for channel, version in model.channels.items() if not _is_incoming(channel)}
    return controls - arriving, arriving


def _is_incoming(channel: str) -> bool:
    """`incoming`, and `incoming-2` and so on, where several channels move at once."""
    name, dash, number = channel.partition("-")
    return name == INCOMING and (not dash or number.isdecimal())


def _need(model: ModelEntry, version: str, moving: set[str]) -> tuple[Need, int]:
    if version in moving:
        return "moving", 0
    if model.channels.get(DEFAULT_CHANNEL) == version:
        return "named", 1
    return ("named", 2) if version in model.channels.values() else ("unnamed", 3)
