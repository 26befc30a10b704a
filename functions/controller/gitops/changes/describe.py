"""The changes from one snapshot to the next, one for each thing that came, changed or went."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from functions.api.snapshot import KeyEntry, Snapshot, TenantEntry
from functions.api.snapshot_comparison import name_of, singular
from functions.api.snapshot_entries import SECTIONS, AnyEntry
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


# In the order in which they are told: tenants, with their keys, then these, then whatever else there is.
_FIRST = ("quotas", "models", "pools", "rollouts", "routing", "admission", "autoscaling")
_OTHERS = (*_FIRST, *(section for section in SECTIONS if section not in {*_FIRST, "tenants", "keys"}))


def describe(old: Snapshot | None, new: Snapshot) -> tuple[Change, ...]:
    """By kind and name. Where there is no old one, everything is new."""
    return (*_tenants(old, new), *(change for section in _OTHERS for change in _entries(old, new, section)))


def _tenants(old: Snapshot | None, new: Snapshot) -> Iterator[Change]:
    old_keys, new_keys = _keys_by_tenant(old), _keys_by_tenant(new)
    before, after = _by_name(old, "tenants"), _by_name(new, "tenants")
    for name in sorted({*before, *after}):
        was, is_ = _Thing(before.get(name), old_keys.get(name, {})), _Thing(after.get(name), new_keys.get(name, {}))
        if was != is_:
            yield _told("tenant", name, was, is_)


def _keys_by_tenant(snapshot: Snapshot | None) -> Mapping[str, Mapping[str, KeyEntry]]:
    grouped: dict[str, dict[str, KeyEntry]] = {}
    for key in snapshot.keys if snapshot is not None else ():
        grouped.setdefault(key.tenant, {})[key.key_id] = key
    return grouped


def _entries(old: Snapshot | None, new: Snapshot, section: str) -> Iterator[Change]:
    before, after = _by_name(old, section), _by_name(new, section)
    for name in sorted({*before, *after}):
        was, is_ = _Thing(before.get(name)), _Thing(after.get(name))
        if was != is_:
            yield _told(singular(section), name, was, is_)


def _by_name(snapshot: Snapshot | None, section: str) -> Mapping[str, AnyEntry]:
    if snapshot is None:
        return {}
    named = name_of(section)
    return {named(entry): facts.as_declared(entry) for entry in getattr(snapshot, section)}


@dataclass(frozen=True, slots=True)
class _Thing:
    """An entry, and of a tenant its keys."""

    entry: AnyEntry | None
    keys: Mapping[str, KeyEntry] = field(default_factory=dict)

    def facts(self, *, briefly: bool = False) -> Facts:
        told = facts.of_entry(self.entry, briefly=briefly) if self.entry is not None else {}
        return {**told, **facts.of_keys(self.keys.values())} if isinstance(self.entry, TenantEntry) else told


def _told(kind: str, name: str, old: _Thing, new: _Thing) -> Change:
    if new.entry is None:
        return Change(kind, name, "removed", _line(f"{kind} {name} removed"))
    if old.entry is None:
        return Change(kind, name, "added", _line(f"{kind} {name} added: {introduced(new.facts(briefly=True))}"))
    clauses = [compared(old.facts(), new.facts()), *(f"{label} rewritten" for label in _hidden(old, new))]
    return Change(kind, name, "changed", _line(f"{kind} {name}: {'; '.join(filter(None, clauses))}"))


def _hidden(old: _Thing, new: _Thing) -> Iterator[str]:
    """What differs and is not seen in any fact: a change is never told as none."""
    if old.entry is not None and new.entry is not None:
        yield from facts.hidden(old.entry, new.entry)
    for key_id in sorted(old.keys.keys() & new.keys.keys()):
        yield from (f"key {key_id}: {label}" for label in facts.hidden(old.keys[key_id], new.keys[key_id]))


def _line(text: str) -> str:
    """Fit for a terminal and a log: one line, nothing that moves a cursor, not without end."""
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return printable if len(printable) <= _WORDS_MAX_CHARS else printable[: _WORDS_MAX_CHARS - 1] + "…"
