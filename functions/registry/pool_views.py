"""What an agent follows: the part of the snapshot that concerns its pool, as a snapshot of its own.

It holds the pool, its models and all rollouts: no tenants, no keys, no other pool's models. So of 5,000 agents only
those that are to load it hear of a new adapter, and none of a new tenant. A view's epoch is that of the publication
which last changed it.

Neighbours: `store` keeps one feed per view that somebody follows.
"""

from functions.api.ids import ModelId, PoolName
from functions.api.snapshot_comparison import Changes
from functions.api.snapshot_entries import AnyEntry, ModelEntry
from functions.api.snapshot_index import Indexed, applied, empty
from functions.fleet.snapshot_news import ALL_POOLS, MAX_POOLS
from functions.registry.feed import Feed


def view_of(content: Indexed, pool: PoolName) -> Indexed:
    """The pool's part; empty, under the content's epoch, where there is no such pool."""
    changes: dict[str, dict[str, AnyEntry | None]] = {
        "models": {model.id: model for model in content.snapshot.models if model.pool == pool},
        "rollouts": dict(content.tables.rollouts),
    }
    if pool in content.tables.pools:
        changes["pools"] = {pool: content.tables.pools[pool]}
    return applied(empty(), content.snapshot, changes)


def follow_on(view: Feed, content: Indexed, changes: Changes, pool: PoolName) -> None:
    """Advance a view's feed where the changes of the whole concern it."""
    mine = _concerning(view.content, changes, pool)
    if any(mine.values()):
        view.advance(applied(view.content, content.snapshot, mine), mine)


def pools_concerned(before: Indexed, changes: Changes) -> tuple[str, ...]:
    """The pools whose views the changes touch, by name; `*` for all or for too many to name."""
    if changes.get("rollouts"):
        return (ALL_POOLS,)
    pools: set[str] = set(changes.get("pools", {}))
    for name, entry in changes.get("models", {}).items():
        old = before.tables.models.get(ModelId(name))
        pools.update(model.pool for model in (old, entry) if isinstance(model, ModelEntry))
    return tuple(sorted(pools)) if len(pools) <= MAX_POOLS else (ALL_POOLS,)


def _concerning(view: Indexed, changes: Changes, pool: PoolName) -> dict[str, dict[str, AnyEntry | None]]:
    models: dict[str, AnyEntry | None] = {}
    for name, entry in changes.get("models", {}).items():
        if isinstance(entry, ModelEntry) and entry.pool == pool:
            models[name] = entry
        elif name in view.tables.models:
            models[name] = None  # gone, or gone to another pool
    pools = {name: entry for name, entry in changes.get("pools", {}).items() if name == pool}
    return {"models": models, "pools": pools, "rollouts": dict(changes.get("rollouts", {}))}
