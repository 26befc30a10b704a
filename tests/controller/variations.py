"""A snapshot's entries with one field changed at a time; fields are found in the types, so none is forgotten."""

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any

import msgspec
from msgspec import inspect as types
from msgspec.structs import replace

from functions.api.ids import PoolName, RolloutId, TenantId
from functions.api.snapshot import ModelEntry, PoolEntry, RolloutEntry, Snapshot, SplitEntry, StageEntry, TenantEntry
from functions.api.snapshot_entries import SECTIONS, AnyEntry

Leaf = tuple[str, Any]  # the innermost field, as `ToolEntry.timeout_s`, and another value for what holds it


def fields() -> set[str]:
    """Return every field of every entry and of its parts, except fields that name an entry."""
    found: set[str] = set()
    for entry, name in SECTIONS.values():
        _collect(types.type_info(entry), found)
        found.discard(f"{entry.__name__}.{name}")
    return found


def varied(entry: AnyEntry) -> Iterator[tuple[str, Any]]:
    """Yield (field, the entry with another value there)."""
    names = dict(SECTIONS.values())
    for field, other in _others(types.type_info(type(entry)), entry):
        if field != f"{type(entry).__name__}.{names[type(entry)]}":
            yield field, other


def with_entry(snapshot: Snapshot, section: str, entry: AnyEntry) -> Snapshot:
    """Return the snapshot with this entry in place of its namesake, and with the targets of its new references."""
    name: Callable[[Any], str] = lambda each: getattr(each, SECTIONS[section][1])  # noqa: E731
    entries = tuple(entry if name(each) == name(entry) else each for each in getattr(snapshot, section))
    return _closed(replace(snapshot, **{section: entries}))


def with_split(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot during a rollout, whose split is not declared."""
    split = SplitEntry("stable", RolloutId("ro-12345678"), 1, 10, "v2")
    models = (replace(model, splits=(split,)) if model.id == "acme/bot" else model for model in snapshot.models)
    return replace(snapshot, models=tuple(models))


def _collect(type_: Any, found: set[str]) -> None:
    match type_:
        case types.StructType():
            for field in type_.fields:
                if not isinstance(field.type, types.StructType):  # a mandatory part: its own fields
                    found.add(f"{type_.cls.__name__}.{field.name}")
                _collect(field.type, found)
        case types.VarTupleType():
            _collect(type_.item_type, found)
        case types.UnionType():
            for each in type_.types:
                _collect(each, found)
        case types.DictType():
            _collect(type_.value_type, found)


def _others(type_: Any, value: Any) -> Iterator[Leaf]:
    match type_:
        case types.StructType():
            for field in type_.fields:
                for inner, other in _others(field.type, getattr(value, field.name)):
                    yield inner or f"{type_.cls.__name__}.{field.name}", replace(value, **{field.name: other})
        case types.UnionType():
            if value is not None:
                yield "", None
                yield from _others(next(each for each in type_.types if not isinstance(each, types.NoneType)), value)
        case types.VarTupleType():
            yield from _others_of_tuple(type_, value)
        case types.DictType():
            yield from _others_of_dict(value)
        case _:
            yield "", _other(type_, value)


def _others_of_tuple(type_: Any, value: tuple[Any, ...]) -> Iterator[Leaf]:
    if value:
        yield "", value[:-1]
    if len(value) > 1:
        yield "", value[::-1]
    for at, item in enumerate(value):
        for inner, other in _others(type_.item_type, item):
            yield inner, (*value[:at], other, *value[at + 1 :])


def _others_of_dict(value: dict[str, str]) -> Iterator[Leaf]:
    """Channels are the one mapping: they name versions."""
    for key, target in value.items():
        yield "", {name: each for name, each in value.items() if name != key}
        yield "", {**value, key: f"{target}2"}


def _other(type_: Any, value: Any) -> Any:
    match type_:
        case types.LiteralType():
            candidates: Iterable[Any] = type_.values
        case types.BoolType():
            candidates = (not value,)
        case types.IntType():
            candidates = (value + 1, value - 1)
        case types.FloatType():
            candidates = (value / 2, value * 1.5, value + 1.0)
        case types.StrType():
            candidates = (f"{value}2", *(value[:-1] + last for last in "0b*"))
        case _:
            raise AssertionError(f"no other value is known for {type_}: teach this file the type")
    for candidate in candidates:
        try:
            found = msgspec.convert(candidate, _annotated(type_))
        except msgspec.ValidationError:
            continue
        if found != value:
            return found
    raise AssertionError(f"no other value is known for {value!r} of {type_}")


def _annotated(type_: Any) -> Any:
    """Return the type again, with its bounds."""
    match type_:
        case types.LiteralType():
            return Any
        case types.BoolType():
            return bool
    bounds = {
        name: getattr(type_, name)
        for name in ("gt", "ge", "lt", "le", "pattern", "min_length", "max_length")
        if getattr(type_, name, None) is not None
    }
    plain = {types.IntType: int, types.FloatType: float, types.StrType: str}[type(type_)]
    return Annotated[plain, msgspec.Meta(**bounds)] if bounds else plain


def _closed(snapshot: Snapshot) -> Snapshot:
    """Add the targets of references: a snapshot with dangling references is refused."""
    tenants = {tenant.name for tenant in snapshot.tenants}
    pools = {pool.name for pool in snapshot.pools}
    rollouts = {rollout.name for rollout in snapshot.rollouts}
    more_tenants = {key.tenant for key in snapshot.keys} - tenants
    more_pools = {each.pool for each in (*snapshot.models, *snapshot.autoscaling)} - pools
    more_rollouts = {model.rollout for model in snapshot.models if model.rollout} - rollouts
    return replace(
        snapshot,
        tenants=(*snapshot.tenants, *(TenantEntry(TenantId(name), "gold", ()) for name in sorted(more_tenants))),
        pools=(*snapshot.pools, *(PoolEntry(PoolName(name), 4096, 2, 8) for name in sorted(more_pools))),
        rollouts=(*snapshot.rollouts, *(RolloutEntry(name, (StageEntry(100),)) for name in sorted(more_rollouts))),
        models=tuple(map(_with_versions, snapshot.models)),
    )


def _with_versions(model: ModelEntry) -> ModelEntry:
    if not model.versions:
        return replace(model, channels={}, splits=())
    names = {version.name for version in model.versions}
    pointed = {*model.channels.values(), *(split.candidate for split in model.splits)}
    missing = [replace(model.versions[0], name=name) for name in sorted(pointed - names)]
    channels = dict(model.channels)
    for split in model.splits:
        control = channels.get(split.channel, split.candidate)
        if control == split.candidate:
            channels[split.channel] = next(name for name in sorted(names) if name != split.candidate)
    return replace(model, versions=(*model.versions, *missing), channels=channels)
