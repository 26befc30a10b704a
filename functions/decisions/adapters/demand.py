"""Demand for a pool's adapters: the adapters of the snapshot, ranked by how much each is needed before any request.

    moving    versions in a rollout (the channels `incoming`, a split's candidate) and the versions they are compared
              with: loaded ahead and kept loaded, so that neither group of the comparison pays for a cold load
    named     versions that any other channel points at: loaded ahead while there is room
    unnamed   all other versions: loaded ahead last; `@version` still reaches them

The order is: moving versions, the default channel, other channels, the rest; by name within each kind. If the list is
cut, the least important adapters are left out. Moving versions take turns by tenant, two versions at a time (old and
new), so that one tenant's many rollouts do not push back those of other tenants.

    turn = two versions of one model, old before new; a tenant's by model; the first of each tenant, then the second, …

Worked example (test_rollouts_of_one_tenant_do_not_crowd_out_another): 40 models of acme are in a rollout and one of
globex, and eight moving versions fit. The order is acme/a0, globex/bot, acme/a1, acme/a10, each with both versions.
Ordered by model alone, globex's versions would be the 81st and 82nd.

A pool that serves another pool's model uses that model's adapters. A pool that is dedicated to tenants loads only
their own adapters ahead; other adapters that these tenants call are loaded on demand. Pure functions.
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
    """All adapters of a pool by rank, built once per snapshot: a plan each second must not scan 10,000."""

    ranked: tuple[WantedAdapter, ...] = ()  # adapters to load ahead
    by_name: Mapping[EngineName, WantedAdapter] = field(default_factory=dict)
    rank: Mapping[EngineName, int] = field(default_factory=dict)
    moving: tuple[EngineName, ...] = ()
    named: tuple[EngineName, ...] = ()

    @classmethod
    def from_ranked(cls, ranked: Iterable[WantedAdapter], on_demand: Iterable[WantedAdapter] = ()) -> "AdapterDemand":
        """Return the demand of adapters to load ahead, in the order of `ranked`; the first entry counts if it names an
        adapter twice. Those of `on_demand` are never loaded ahead."""
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


def build_demand(snapshot: Snapshot, pool: PoolName) -> AdapterDemand:
    """Return the demand for every adapter version of the pool, the most important first. Adapters of tenants to which a
    dedicated pool is not dedicated are never loaded ahead."""
    entry = next((entry for entry in snapshot.pools if entry.name == pool), None)
    served = model_of(entry) if entry is not None else pool
    owners = entry.dedicated_to if entry is not None else ()
    turns: dict[str, list[list[WantedAdapter]]] = {}  # grouped by tenant
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
    return AdapterDemand.from_ranked(ranked, sorted(on_demand, key=lambda wanted: wanted.name))


def _in_order(entries: Iterable[tuple[int, EngineName, WantedAdapter]]) -> list[WantedAdapter]:
    return [wanted for *_, wanted in sorted(entries, key=lambda entry: entry[:2])]


def _moving(model: ModelEntry) -> tuple[set[str], set[str]]:
    """Return the versions of a model in a rollout: the serving ones, and the incoming ones; both are empty without
    one."""
    arriving = {split.candidate for split in model.splits}
    controls = {model.channels[split.channel] for split in model.splits if split.channel in model.channels}
    incoming = {version for channel, version in model.channels.items() if is_incoming(channel)}
    if incoming:
        arriving |= incoming
        controls |= {version for channel, version in model.channels.items() if not is_incoming(channel)}
    return controls - arriving, arriving


def _need(model: ModelEntry, version: str, moving: set[str]) -> tuple[Need, int]:
    """Return how much a version is needed, and the rank of that kind (0: most). `moving`: the versions in a rollout."""
    if version in moving:
        return "moving", 0
    if model.channels.get(DEFAULT_CHANNEL) == version:
        return "named", 1
    return ("named", 2) if version in model.channels.values() else ("unnamed", 3)
