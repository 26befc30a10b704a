"""What one entry says of others must be true: a key's tenant, a model's pool and rollout are in the snapshot.

Types and bounds are the decoder's affair. What only matters to people or can do no harm (a tier without a quota, a
fallback to a pool that is not there) is checked where the YAML is read, and not again here.
"""

from collections.abc import Iterable

from functions.api.snapshot_entries import AnyEntry, AutoscalingEntry, KeyEntry, ModelEntry, SnapshotInvalid
from functions.api.snapshot_tables import Tables
from functions.api.snapshot_tree import Breathe

_SLICE = 500


def check_entries(tables: Tables, entries: Iterable[AnyEntry], breathe: Breathe) -> None:
    """SnapshotInvalid for the first entry that names something which is not in the tables."""
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
