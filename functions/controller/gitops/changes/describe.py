"""Changes from one configuration to the next: one line for each object that was added, changed or removed.

A line looks like `tenant acme: tier standard -> enterprise; key ci revoked`. Compiling needs the digests of
artifacts. An unknown digest is replaced by an assumed one that is equal for equal addresses, so that a version which
is only declared is described as added, not left out.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from functions.api.ids import Digest
from functions.api.loader import Loaded
from functions.api.snapshot import KeyEntry, Snapshot, TenantEntry
from functions.api.snapshot_comparison import name_of, singular
from functions.api.snapshot_entries import SECTIONS, AnyEntry
from functions.controller.gitops.changes import facts
from functions.controller.gitops.changes.facts import Absent, Facts, Secret, Value
from functions.controller.rollouts.book import Book
from functions.controller.rollouts.merging import with_api_of
from functions.controller.snapshot.compile import compile_snapshot, unpinned_artifacts

_ADDED_SHOWN = 4  # names of a set that are listed; the others are counted
_TEXT_SHOWN_CHARS = 100  # limit of one value, so that the other changes stay visible
_GONE_WORDS = {"key": "revoked"}  # words used instead of `removed`


def compared(old: Facts, new: Facts) -> str:
    """Return the changes, clause by clause; empty if there are none."""
    clauses: list[str] = []
    for label in {**old, **new}:
        if label not in old:
            clauses.extend(_added_clause(label, new[label], old, new))
        elif label not in new:
            clauses.extend(_removed_clause(label, old, new))
        elif old[label] != new[label]:
            clauses.extend(_changed(label, old[label], new[label]))
    return "; ".join(clauses)


def introduced(facts: Facts) -> str:
    """Return a brief description of a new object: its facts except secrets, absent values and details of its parts."""
    clauses: list[str] = []
    for label, value in facts.items():
        if ":" in label or isinstance(value, Secret | Absent):
            continue
        if not isinstance(value, frozenset):
            clauses.append(f"{label} {shown(value)}")
        elif value:
            clauses.append(f"{label}{'' if len(value) == 1 or label.endswith('s') else 's'} {_listed(value)}")
    return ", ".join(clauses)


def shown(value: Value) -> str:
    if isinstance(value, Secret):
        return "secret"
    if isinstance(value, frozenset):
        return _listed(value)
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _TEXT_SHOWN_CHARS else text[: _TEXT_SHOWN_CHARS - 1] + "…"


def _added_clause(label: str, value: Value, old: Facts, new: Facts) -> Iterator[str]:
    if not _is_detail(label, new):
        yield f"{label} {shown(value)} added"


def _removed_clause(label: str, old: Facts, new: Facts) -> Iterator[str]:
    if not _is_detail(label, old):
        yield f"{label} removed (was {shown(old[label])})"


def _is_detail(label: str, facts: Facts) -> bool:
    """Return True if the label (`key ci: scopes`) belongs to a part (`key ci`) that is itself listed as added or
    removed."""
    return ":" in label and label.partition(" ")[0] in facts


def _changed(label: str, old: Value, new: Value) -> Iterator[str]:
    if isinstance(old, frozenset) and isinstance(new, frozenset):
        yield from _set_changed(label, old, new)
    elif isinstance(old, Secret) or isinstance(new, Secret):
        yield f"{label} replaced"
    elif shown(old) == shown(new):
        yield f"{label} {shown(old)} changed after the shown part"
    else:
        yield f"{label} {shown(old)} -> {shown(new)}{_percent(old, new)}"


def _set_changed(label: str, old: frozenset[str], new: frozenset[str]) -> Iterator[str]:
    if came := new - old:
        yield f"{label} {_listed(came)} added"
    if went := old - new:
        yield f"{label} {_listed(went)} {_GONE_WORDS.get(label, 'removed')}"


def _percent(old: Value, new: Value) -> str:
    """Return for example `(+60 %)` for 500000 -> 800000; empty if a value is no number or the old one is 0."""
    if not isinstance(old, int | float) or not isinstance(new, int | float) or not old:
        return ""
    return f" ({(new - old) / old:+.0%})".replace("%", " %")


def _listed(names: frozenset[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - _ADDED_SHOWN
    return ", ".join(ordered[:_ADDED_SHOWN]) + (f" and {more} more" if more > 0 else "")


Verb = Literal["added", "changed", "removed"]
_WORDS_MAX_CHARS = 400
SHOWN = 20  # changes shown in full; the others are counted


@dataclass(frozen=True, slots=True)
class Change:
    kind: str  # `tenant`, `quota`, `model` …
    name: str
    verb: Verb
    words: str  # full text in one line: `tenant acme: tier standard -> enterprise`


# Order of descriptions: tenants with their keys, then these sections, then all others.
_FIRST = ("quotas", "models", "pools", "rollouts", "routing", "admission", "autoscaling")
_OTHERS = (*_FIRST, *(section for section in SECTIONS if section not in {*_FIRST, "tenants", "keys"}))


def describe(old: Snapshot | None, new: Snapshot) -> tuple[Change, ...]:
    """Return the changes by kind and name. Without an old snapshot, everything is new."""
    return (*_tenants(old, new), *(change for section in _OTHERS for change in _entries(old, new, section)))


def _tenants(old: Snapshot | None, new: Snapshot) -> Iterator[Change]:
    old_keys, new_keys = _keys_by_tenant(old), _keys_by_tenant(new)
    before, after = _by_name(old, "tenants"), _by_name(new, "tenants")
    for name in sorted({*before, *after}):
        was, is_ = _Thing(before.get(name), old_keys.get(name, {})), _Thing(after.get(name), new_keys.get(name, {}))
        if was != is_:
            yield _change("tenant", name, was, is_)


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
            yield _change(singular(section), name, was, is_)


def _by_name(snapshot: Snapshot | None, section: str) -> Mapping[str, AnyEntry]:
    if snapshot is None:
        return {}
    named = name_of(section)
    return {named(entry): facts.as_declared(entry) for entry in getattr(snapshot, section)}


@dataclass(frozen=True, slots=True)
class _Thing:
    """An entry; for a tenant also its keys."""

    entry: AnyEntry | None
    keys: Mapping[str, KeyEntry] = field(default_factory=dict)

    def facts(self, *, briefly: bool = False) -> Facts:
        own = facts.entry_facts(self.entry, briefly=briefly) if self.entry is not None else {}
        return {**own, **facts.key_facts(self.keys.values())} if isinstance(self.entry, TenantEntry) else own


def _change(kind: str, name: str, old: _Thing, new: _Thing) -> Change:
    if new.entry is None:
        return Change(kind, name, "removed", _line(f"{kind} {name} removed"))
    if old.entry is None:
        return Change(kind, name, "added", _line(f"{kind} {name} added: {introduced(new.facts(briefly=True))}"))
    clauses = [compared(old.facts(), new.facts()), *(f"{label} rewritten" for label in _hidden(old, new))]
    return Change(kind, name, "changed", _line(f"{kind} {name}: {'; '.join(filter(None, clauses))}"))


def _hidden(old: _Thing, new: _Thing) -> Iterator[str]:
    """Yield labels of differences that no fact shows, so that a change always has a description."""
    if old.entry is not None and new.entry is not None:
        yield from facts.hidden_differences(old.entry, new.entry)
    for key_id in sorted(old.keys.keys() & new.keys.keys()):
        yield from (f"key {key_id}: {label}" for label in facts.hidden_differences(old.keys[key_id], new.keys[key_id]))


def _line(text: str) -> str:
    """Return the text fit for a terminal and a log: one bounded line without control characters."""
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return printable if len(printable) <= _WORDS_MAX_CHARS else printable[: _WORDS_MAX_CHARS - 1] + "…"


def changes_of(present: Loaded | None, candidate: Loaded) -> tuple[Change, ...]:
    return describe(compiled(present, {}) if present is not None else None, compiled(candidate, {}))


def changes_to_running(running: Snapshot, candidate: Loaded, api: Book) -> tuple[Change, ...]:
    """Return the changes that publishing the candidate would make to the registry's snapshot. Entries made by the
    registry's API stay, unless the candidate declares their name or lacks their tenant or pool."""
    known = {version.artifact_uri: version.digest for model in running.models for version in model.versions}
    return describe(running, with_api_of(running, compiled(candidate, known), api))


def compiled(loaded: Loaded, known: Mapping[str, Digest]) -> Snapshot:
    """Compile the objects as for publication, with assumed digests for unknown artifacts."""
    assumed = {uri: _assumed(uri) for uri in unpinned_artifacts(loaded.objects) if uri not in known}
    digests = {**known, **assumed}
    return compile_snapshot(loaded.objects, digests, epoch=0, revision="", compiled_unix_s=0.0).snapshot


def _assumed(artifact_uri: str) -> Digest:
    return Digest("sha256:" + hashlib.sha256(artifact_uri.encode()).hexdigest())


@dataclass(frozen=True, slots=True)
class Summary:
    headline: str  # `1,002 changes: 1,000 tenants added, 2 models changed`
    first: tuple[str, ...]  # texts of the first changes
    more: int  # number of further changes

    @property
    def lines(self) -> tuple[str, ...]:
        return (self.headline, *self.first, *([f"… and {self.more:,} more"] if self.more else []))


def summarize(changes: Sequence[Change], shown: int = SHOWN) -> Summary:
    """Return the summary; its headline counts all changes in their order."""
    counts = Counter((change.kind, change.verb) for change in changes)
    sorts = ", ".join(f"{count:,} {_plural(kind, count)} {verb}" for (kind, verb), count in counts.items())
    headline = f"{len(changes):,} {_plural('change', len(changes))}: {sorts}" if changes else "no change"
    first = tuple(change.words for change in changes[:shown])
    return Summary(headline, first, len(changes) - len(first))


def _plural(word: str, count: int) -> str:
    if count == 1:
        return word
    return f"{word} policies" if word in ("routing", "admission", "autoscaling") else f"{word}s"
