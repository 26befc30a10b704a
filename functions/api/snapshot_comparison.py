"""Changes between a base and a new content, found in one walk over both, which are sorted."""

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from functions.api.snapshot_entries import SECTIONS, AnyEntry, Snapshot
from functions.api.snapshot_tree import Breathe

SLICE = 100  # entries between two calls of `breathe`: about 0.3 ms of work

# Sections and names, sorted: the new entry, or None if it was removed.
Changes = Mapping[str, Mapping[str, AnyEntry | None]]


def name_of(section: str) -> Callable[[Any], str]:
    """Return a function that returns the name of an entry of this snapshot section."""
    name: Callable[[Any], str] = attrgetter(SECTIONS[section][1])
    return name


def singular(section: str) -> str:
    """Return the name of one entry of the section, such as `tenant`."""
    return str(SECTIONS[section][0].__struct_config__.tag)


class _Walk:
    """One section of the base, and the position up to which it was compared."""

    def __init__(self, section: str, base: tuple[AnyEntry, ...]) -> None:
        self.changed: dict[str, AnyEntry | None] = {}
        self._named = name_of(section)
        self._base = base
        self._at = 0

    def add(self, name: str, entry: AnyEntry) -> None:
        while self._at < len(self._base) and (passed := self._named(self._base[self._at])) < name:
            self.changed[passed] = None
            self._at += 1
        if self._at < len(self._base) and self._named(self._base[self._at]) == name:
            if self._base[self._at] != entry:
                self.changed[name] = entry
            self._at += 1
        else:
            self.changed[name] = entry

    def finish(self, breathe: Breathe) -> None:
        for count, entry in enumerate(self._base[self._at :]):
            self.changed[self._named(entry)] = None
            if count % SLICE == 0:
                breathe()


class Comparison:
    """Comparison with a base: `add` every entry of the new content in order; then `finish` returns the changes."""

    def __init__(self, base: Snapshot) -> None:
        self._walks = {section: _Walk(section, getattr(base, section)) for section in SECTIONS}

    def add(self, section: str, name: str, entry: AnyEntry) -> None:
        self._walks[section].add(name, entry)

    def finish(self, breathe: Breathe) -> Changes:
        for walk in self._walks.values():
            walk.finish(breathe)
        return {section: walk.changed for section, walk in self._walks.items()}


def in_order(section: str, entries: Iterable[AnyEntry]) -> list[AnyEntry]:
    return sorted(entries, key=name_of(section))
