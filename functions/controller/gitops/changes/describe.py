"""The changes from one snapshot to the next, one for each thing that came, changed or went."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from functions.api.snapshot import KeyEntry, Snapshot
from functions.api.snapshot_comparison import name_of
from functions.controller.gitops.changes import facts
from functions.controller.gitops.changes.facts import Facts
from functions.controller.gitops.changes.wording import compared, introduced

Verb = Literal["added", "changed", "removed"]
_WORDS_MAX_CHARS = 400


@dataclass(frozen=True, slots=True)
class Change:
    kind: str  # `tenant`, `quota`, `model` …
    name: str
    verb: Verb
    words: str  # the whole of it, in one line: `tenant acme: tier standard -> enterprise`


# In the order in which they are told; tenants come first, with their keys.
_OTHERS: tuple[tuple[str, str, Callable[[Any], Facts]], ...] = (
    ("quota", "quotas", facts.of_quota),
    ("model", "models", facts.of_model),
    ("pool", "pools", facts.of_pool),
    ("rollout", "rollouts", facts.of_rollout),
    ("routing", "routing", facts.of_routing),
    ("admission", "admission", facts.of_admission),
    ("autoscaling", "autoscaling", facts.of_autoscaling),
)


def describe(old: Snapshot | None, new: Snapshot) -> tuple[Change, ...]:
    """By kind and name. Where there is no old one, everything is new."""
    return (*_tenants(old, new), *(change for other in _OTHERS for change in _entries(old, new, *other)))


def _tenants(old: Snapshot | None, new: Snapshot) -> Iterator[Change]:
    old_keys, new_keys = _keys_by_tenant(old), _keys_by_tenant(new)
    before = {tenant.name: tenant for tenant in (old.tenants if old is not None else ())}
    after = {tenant.name: tenant for tenant in new.tenants}
    for name in sorted({*before, *after}):
        was, is_ = before.get(name), after.get(name)
        if was == is_ and old_keys[name] == new_keys[name]:
            continue
        yield from _told(
            "tenant",
            name,
            facts.of_tenant(was, old_keys[name]) if was is not None else None,
            facts.of_tenant(is_, new_keys[name]) if is_ is not None else None,
        )


def _keys_by_tenant(snapshot: Snapshot | None) -> defaultdict[str, list[KeyEntry]]:
    grouped: defaultdict[str, list[KeyEntry]] = defaultdict(list)
    for key in snapshot.keys if snapshot is not None else ():
        grouped[key.tenant].append(key)
    return grouped


def _entries(
    old: Snapshot | None, new: Snapshot, kind: str, section: str, facts_of: Callable[[Any], Facts]
) -> Iterator[Change]:
    named = name_of(section)
    before = {named(entry): entry for entry in _section(old, section)}
    after = {named(entry): entry for entry in _section(new, section)}
    for name in sorted({*before, *after}):
        was, is_ = before.get(name), after.get(name)
        if was != is_:
            old_facts = facts_of(was) if was is not None else None
            new_facts = facts_of(is_) if is_ is not None else None
            yield from _told(kind, name, old_facts, new_facts)


def _section(snapshot: Snapshot | None, section: str) -> Iterable[Any]:
    return getattr(snapshot, section) if snapshot is not None else ()


def _told(kind: str, name: str, old: Facts | None, new: Facts | None) -> Iterator[Change]:
    if old is not None and new is not None:
        words = compared(old, new)
        if words:
            yield Change(kind, name, "changed", _line(f"{kind} {name}: {words}"))
    elif new is not None:
        yield Change(kind, name, "added", _line(f"{kind} {name} added: {introduced(new)}"))
    else:
        yield Change(kind, name, "removed", _line(f"{kind} {name} removed"))


def _line(text: str) -> str:
    """Fit for a terminal and a log: one line, nothing that moves a cursor, not without end."""
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return printable if len(printable) <= _WORDS_MAX_CHARS else printable[: _WORDS_MAX_CHARS - 1] + "…"
