"""A snapshot ready for use: its entries by name, its references checked, and the hash tree of its content.

A new one is made from an old one and the changes. Unchanged parts are the same objects in both, so a swap costs as
much as the change, and freeing the old one frees only what was removed.

Long work is cut into slices with a call of `breathe` between them. The caller decides whether that call releases
the interpreter (a thread next to an event loop) or does nothing.

The decoder checks types and bounds. This module checks references: a key's tenant, a model's pool and rollout must
be in the snapshot. References that only matter to people or are harmless (a tier without a quota, a fallback to a
missing pool) are checked when the YAML is read.

Neighbours: `snapshot_document` reads changes; `functions.decisions.catalogue` answers lookups from this.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from functions.api.ids import KeyId, ModelId, PoolName, TenantId
from functions.api.snapshot_comparison import SLICE, Changes, Comparison, in_order, name_of, singular
from functions.api.snapshot_entries import (
    SCHEMA_VERSION,
    SECTIONS,
    AdmissionEntry,
    AnyEntry,
    AutoscalingEntry,
    KeyEntry,
    ModelEntry,
    PoolEntry,
    QuotaEntry,
    RolloutEntry,
    RoutingEntry,
    Snapshot,
    SnapshotInvalid,
    TenantEntry,
)
from functions.api.snapshot_tree import EMPTY_TREE, Branch, Breathe, HashTree, grown, tree_of


@dataclass(frozen=True, slots=True)
class Tables:
    """The entries of each section by name: one dictionary per section, read on every request."""

    admission: dict[str, AdmissionEntry] = field(default_factory=dict)
    autoscaling: dict[str, AutoscalingEntry] = field(default_factory=dict)
    keys: dict[KeyId, KeyEntry] = field(default_factory=dict)
    models: dict[ModelId, ModelEntry] = field(default_factory=dict)
    pools: dict[PoolName, PoolEntry] = field(default_factory=dict)
    quotas: dict[str, QuotaEntry] = field(default_factory=dict)
    rollouts: dict[str, RolloutEntry] = field(default_factory=dict)
    routing: dict[str, RoutingEntry] = field(default_factory=dict)
    tenants: dict[TenantId, TenantEntry] = field(default_factory=dict)


_SLICE = 500


def base_of(models: Mapping[ModelId, ModelEntry], pool: str) -> ModelEntry | None:
    """Return the base model whose name the pool has (`pool_of_base`), a shared model or a tenant's own; None if there
    is none."""
    dots = (at for at, character in enumerate(pool) if character == ".")
    for name in (pool, *(f"{pool[:at]}/{pool[at + 1 :]}" for at in dots)):
        found = models.get(ModelId(name))
        if found is not None and found.type == "base":
            return found
    return None


def check_entries(tables: Tables, entries: Iterable[AnyEntry], breathe: Breathe) -> None:
    """Raise SnapshotInvalid for the first of `entries` that refers to an entry which is not in the tables."""
    for count, entry in enumerate(entries):
        if isinstance(entry, KeyEntry):
            if entry.tenant not in tables.tenants:
                raise _missing(f"key {entry.key_id} belongs to tenant {entry.tenant}")
        elif isinstance(entry, ModelEntry):
            _check_model(entry, tables)
        elif isinstance(entry, AutoscalingEntry) and entry.pool not in tables.pools:
            raise _missing(f"autoscaling {entry.name} is for pool {entry.pool}")
        if count % _SLICE == 0:
            breathe()


def _check_model(model: ModelEntry, tables: Tables) -> None:
    if model.pool not in tables.pools:
        raise _missing(f"model {model.id} is served by pool {model.pool}")
    if model.rollout and model.rollout not in tables.rollouts:
        raise _missing(f"model {model.id} is rolled out by {model.rollout}")
    names: set[str] = set()
    for version in model.versions:
        if version.name in names:
            raise SnapshotInvalid(f"the version of {model.id} {version.name} occurs twice")
        names.add(version.name)
    for channel, version_name in model.channels.items():
        if version_name not in names:
            raise SnapshotInvalid(
                f"channel {model.id}:{channel} points at version {version_name}, which does not exist"
            )
    _check_splits(model, names)


def _check_splits(model: ModelEntry, versions: set[str]) -> None:
    split_before: set[str] = set()
    for split in model.splits:
        where = f"the split of {model.id}:{split.channel}"
        if split.channel in split_before:
            raise SnapshotInvalid(f"{where} occurs twice")
        split_before.add(split.channel)
        if split.candidate not in versions:
            raise SnapshotInvalid(f"{where} names version {split.candidate}, which does not exist")
        control = model.channels.get(split.channel)
        if control is None or control == split.candidate:
            raise SnapshotInvalid(f"{where} needs a channel that points at another version than {split.candidate}")


def _missing(what: str) -> SnapshotInvalid:
    return SnapshotInvalid(f"{what}, which is not in the snapshot")


def without_pause() -> None:
    """Do nothing: the default `breathe`, for callers without an event loop to yield to."""


@dataclass(frozen=True, slots=True)
class Indexed:
    """A snapshot with its tables and tree; immutable after construction."""

    snapshot: Snapshot  # sections sorted by name
    tables: Tables
    tree: HashTree

    @property
    def content_hash(self) -> str:
        return self.tree.root

    def table(self, section: str) -> dict[str, AnyEntry]:
        found: dict[str, AnyEntry] = getattr(self.tables, section)
        return found


def empty() -> Indexed:
    """Return the initial content: epoch 0, no entries."""
    return Indexed(Snapshot(SCHEMA_VERSION, 0, "", 0.0, (), (), (), ()), Tables(), EMPTY_TREE)


def indexed(snapshot: Snapshot, base: Indexed | None = None, breathe: Breathe = without_pause) -> Indexed:
    """Return the snapshot with tables and tree, sharing equal entries with the base (None: the empty content);
    SnapshotInvalid if a name occurs twice or a reference is broken."""
    base = base or empty()
    comparison = Comparison(base.snapshot)
    for section in SECTIONS:
        named, last = name_of(section), ""
        for count, entry in enumerate(in_order(section, getattr(snapshot, section))):
            name = named(entry)
            if name == last:
                raise SnapshotInvalid(f"the {singular(section)} {name} occurs twice")
            last = name
            comparison.add(section, name, entry)
            if count % SLICE == 0:
                breathe()
    return applied(base, snapshot, comparison.finish(breathe), breathe)


def applied(base: Indexed, header: Snapshot, changes: Changes, breathe: Breathe = without_pause) -> Indexed:
    """Return the base with the changes applied, with the header's epoch and origin (its sections are ignored).
    SnapshotInvalid if a reference is broken."""
    tables: dict[str, Any] = {}
    sections: dict[str, tuple[AnyEntry, ...]] = {}
    branches: dict[str, Branch] = {}
    for section in SECTIONS:
        old, changed = base.table(section), changes.get(section, {})
        sections[section] = getattr(base.snapshot, section)
        tables[section], branches[section] = old, base.tree.branches[section]
        if changed:
            ordered = sorted(changed)
            tables[section] = table = _table(old, changed, breathe)
            sections[section] = tuple(_merged(sections[section], changed, ordered, name_of(section), breathe))
            branches[section] = grown(branches[section], table, ordered, breathe)
        breathe()
    snapshot = Snapshot(
        schema_version=header.schema_version,
        epoch=header.epoch,
        revision=header.revision,
        compiled_unix_s=header.compiled_unix_s,
        **sections,  # type: ignore[arg-type]  # by name, each of its own type
    )
    made = Indexed(snapshot, Tables(**tables), tree_of(branches))
    check_entries(made.tables, _to_check(made, changes, breathe), breathe)
    return made


def changes_between(old: Indexed, new: Indexed) -> dict[str, dict[str, AnyEntry | None]]:
    """Return by section and name the entries that differ in `new`, None for a removed one; only buckets with different
    digests are compared."""
    changes: dict[str, dict[str, AnyEntry | None]] = {}
    for section in SECTIONS:
        before, after = old.tree.branches[section], new.tree.branches[section]
        old_table, new_table = old.table(section), new.table(section)
        changed: dict[str, AnyEntry | None] = {}
        for bucket, digest in enumerate(after.digests):
            if digest == before.digests[bucket]:
                continue
            for name in {*before.names[bucket], *after.names[bucket]}:
                if old_table.get(name) != new_table.get(name):
                    changed[name] = new_table.get(name)
        if changed:
            changes[section] = changed
    return changes


def _table(old: dict[str, AnyEntry], changed: Mapping[str, AnyEntry | None], breathe: Breathe) -> dict[str, AnyEntry]:
    table = old.copy()
    for count, (name, entry) in enumerate(changed.items()):
        if entry is None:
            table.pop(name, None)
        else:
            table[name] = entry
        if count % SLICE == 0:
            breathe()
    return table


def _merged(
    old: tuple[AnyEntry, ...],
    changed: Mapping[str, AnyEntry | None],
    ordered: list[str],
    named: Callable[[AnyEntry], str],
    breathe: Breathe,
) -> list[AnyEntry]:
    """Return the section with the changes merged in: copy runs of unchanged entries between changed, added or removed
    ones."""
    merged: list[AnyEntry] = []
    position = 0
    for count, name in enumerate(ordered):
        at = bisect_left(old, name, lo=position, key=named)
        merged.extend(old[position:at])
        position = at + (at < len(old) and named(old[at]) == name)
        entry = changed[name]
        if entry is not None:
            merged.append(entry)
        if count % SLICE == 0:
            breathe()
    merged.extend(old[position:])
    return merged


def _to_check(made: Indexed, changes: Changes, breathe: Breathe) -> Iterator[AnyEntry]:
    """Yield entries whose references may be broken: all if any was removed, else those added or changed."""
    if _has_removals(changes, breathe):
        for section in SECTIONS:
            yield from made.table(section).values()
    else:
        for changed in changes.values():
            yield from (entry for entry in changed.values() if entry is not None)


def _has_removals(changes: Changes, breathe: Breathe) -> bool:
    for changed in changes.values():
        for count, entry in enumerate(changed.values()):
            if entry is None:
                return True
            if count % 1000 == 0:
                breathe()
    return False
