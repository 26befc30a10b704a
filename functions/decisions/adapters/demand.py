"""Demand for a pool's adapters: those in the snapshot, ranked by how much each is needed before any request.

    moving    a rollout's versions (the channels `incoming`, a split's candidate) and those they are compared with:
              loaded ahead, and kept, so that neither group of a comparison pays for a cold load
    named     what any other channel points at: loaded ahead while there is room
    unnamed   the rest: loaded ahead last, reachable by `@version` all the same

Ranked so that a cut anywhere leaves out the least: moving, then the default channel, other channels, the rest; each by
name. The moving ones go round by tenant, two at a time, since a new version is nothing without the one that it follows:
however many rollouts a tenant begins, or pauses for ever, the places that others' need are not behind them.

    turn = two versions of one model, old before new; a tenant's by model; the first of each tenant, then the second, …

Worked example (test_one_tenants_rollouts_do_not_keep_anothers_out): 40 models of acme move, and one of globex, where
eight versions may: acme/a0, globex/bot, acme/a1, acme/a10, each with both versions. By model alone globex's would be
the 81st and 82nd.
A pool that serves another pool's model takes that one's adapters. A pool that is dedicated to tenants loads ahead only
their own adapters; what else these tenants call comes when they call it.
Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Literal

from functions.api.ids import DEFAULT_CHANNEL, Digest, EngineName, PoolName, is_incoming
from functions.api.snapshot import ModelEntry, Snapshot
from functions.decisions.routing.placement import model_of

Need = Literal["moving", "named", "unnamed"]


@dataclass(frozen=True, slots=True)
class WantedAdapter:
    name: EngineName
    digest: Digest
    artifact_uri: str
    need: Need = "named"


@dataclass(frozen=True, slots=True)
class AdapterDemand:
    """All of a pool's adapters in order of rank, made once a snapshot: a plan a second must not walk ten thousand."""

    ranked: tuple[WantedAdapter, ...] = ()  # to be loaded ahead
    by_name: Mapping[EngineName, WantedAdapter] = field(default_factory=dict)
    rank: Mapping[EngineName, int] = field(default_factory=dict)
    moving: tuple[EngineName, ...] = ()
    named: tuple[EngineName, ...] = ()

    @classmethod
    def of(cls, ranked: Iterable[WantedAdapter], on_demand: Iterable[WantedAdapter] = ()) -> "AdapterDemand":
        """`ranked` may name one adapter twice; the first counts. `on_demand`: never loaded before a request."""
        ahead: dict[EngineName, WantedAdapter] = {}
        for wanted in ranked:
            ahead.setdefault(wanted.name, wanted)
        by_name = {wanted.name: wanted for wanted in on_demand} | ahead
        return cls(
            ranked=tuple(ahead.values()),
            by_name=by_name,
            rank={name: rank for rank, name in enumerate((*ahead, *(by_name.keys() - ahead.keys())))},
            moving=tuple(wanted.name for wanted in ahead.values() if wanted.need == "moving"),
            named=tuple(wanted.name for wanted in ahead.values() if wanted.need == "named"),
        )


def wanted_in(snapshot: Snapshot, pool: PoolName) -> AdapterDemand:
    """Every adapter version of the pool, the most important first."""
    entry = next((entry for entry in snapshot.pools if entry.name == pool), None)
    served = model_of(entry) if entry is not None else pool
    owners = entry.dedicated_to if entry is not None else ()
    turns: dict[str, list[list[WantedAdapter]]] = {}  # by tenant
    still: list[tuple[int, EngineName, WantedAdapter]] = []
    on_demand: list[WantedAdapter] = []
    for model in sorted(snapshot.models, key=lambda model: model.id):
        if model.type != "lora" or model.pool != served:
            continue
        if owners and model.id.partition("/")[0] not in owners:
            on_demand += (
                WantedAdapter(each.engine_name, each.digest, each.artifact_uri, "unnamed") for each in model.versions
            )
            continue
        controls, arriving = _moving(model)
        moving: list[tuple[bool, EngineName, WantedAdapter]] = []
        for version in model.versions:
            need, rank = _need(model, version.name, controls | arriving)
            wanted = WantedAdapter(version.engine_name, version.digest, version.artifact_uri, need)
            if need == "moving":
                moving.append((version.name in arriving, wanted.name, wanted))
            else:
                still.append((rank, wanted.name, wanted))
        ordered = _in_order(moving)
        pairs = [ordered[at : at + 2] for at in range(0, len(ordered), 2)]
        turns.setdefault(model.id.partition("/")[0], []).extend(pairs)
    rounds = zip_longest(*(turns[tenant] for tenant in sorted(turns)), fillvalue=())
    ranked = (*chain.from_iterable(chain.from_iterable(rounds)), *_in_order(still))
    return AdapterDemand.of(ranked, sorted(on_demand, key=lambda wanted: wanted.name))


def _in_order(entries: Iterable[tuple[int, EngineName, WantedAdapter]]) -> list[WantedAdapter]:
    return [wanted for *_, wanted in sorted(entries, key=lambda entry: entry[:2])]


def _moving(model: ModelEntry) -> tuple[set[str], set[str]]:
    """The versions of a model in rollout: those that serve, and those on their way in."""
    arriving = {split.candidate for split in model.splits}
    controls = {model.channels[split.channel] for split in model.splits if split.channel in model.channels}
    incoming = {version for channel, version in model.channels.items() if is_incoming(channel)}
    if incoming:
        arriving |= incoming
        controls |= {version for channel, version in model.channels.items() if not is_incoming(channel)}
    return controls - arriving, arriving


def _need(model: ModelEntry, version: str, moving: set[str]) -> tuple[Need, int]:
    """And the rank of its kind."""
    if version in moving:
        return "moving", 0
    if model.channels.get(DEFAULT_CHANNEL) == version:
        return "named", 1
    return ("named", 2) if version in model.channels.values() else ("unnamed", 3)
