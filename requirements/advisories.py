"""Advisories in the OSV format (ossf.github.io/osv-schema) and the versions that they affect. Only `read` is impure.

A version is affected if the advisory lists it, or if it is inside a range of the advisory's events:

    introduced 2.0, fixed 2.4.1, introduced 3.0    2.4.0 yes, 2.4.1 no, 3.1 yes

Versions follow PEP 440, as those of all pins do. A range that cannot be compared counts as affected.
"""

import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ECOSYSTEM = "PyPI"


class Event(msgspec.Struct, frozen=True):
    introduced: str | None = None
    fixed: str | None = None
    last_affected: str | None = None


class Range(msgspec.Struct, frozen=True):
    type: str
    events: tuple[Event, ...] = ()


class Package(msgspec.Struct, frozen=True):
    ecosystem: str
    name: str


class Affected(msgspec.Struct, frozen=True):
    package: Package | None = None
    ranges: tuple[Range, ...] | None = None
    versions: tuple[str, ...] | None = None

    @property
    def name(self) -> str | None:
        """Canonical name of the Python package, or None for another ecosystem."""
        if self.package is None or self.package.ecosystem.partition(":")[0] != ECOSYSTEM:
            return None
        return str(canonicalize_name(self.package.name))

    def holds(self, version: Version) -> bool:
        if any(_is(each, version) for each in self.versions or ()):
            return True
        try:
            return any(_inside(each.events, version) for each in self._ranges())
        except InvalidVersion:
            return True

    def fixed_in(self, version: Version) -> str | None:
        """Return the lowest version above this one in which the advisory is fixed."""
        fixes = (event.fixed for each in self._ranges() for event in each.events if event.fixed is not None)
        try:
            above = [fix for fix in map(Version, fixes) if fix > version]
        except InvalidVersion:
            return None
        return str(min(above)) if above else None

    def _ranges(self) -> Iterator[Range]:
        return (each for each in self.ranges or () if each.type != "GIT")


class Advisory(msgspec.Struct, frozen=True):
    id: str
    modified: datetime
    aliases: tuple[str, ...] | None = None
    summary: str = ""
    withdrawn: datetime | None = None
    affected: tuple[Affected, ...] | None = None

    @property
    def names(self) -> frozenset[str]:
        """The advisory's id and its aliases."""
        return frozenset({self.id, *(self.aliases or ())})


class Unreadable(Exception):
    """A file that is no readable advisory; the message names it."""


def read(place: Path) -> Iterator[Advisory]:
    """Yield the advisories about Python packages in a folder of JSON files, or in `all.zip` as OSV publishes it."""
    for name, content in _files(place):
        try:
            advisory = msgspec.json.decode(content, type=Advisory)
        except msgspec.DecodeError as error:
            raise Unreadable(f"{name} is not an advisory in the OSV format: {error}") from error
        if any(each.name is not None for each in advisory.affected or ()):
            yield advisory


def _files(place: Path) -> Iterator[tuple[str, bytes]]:
    archives = [place] if place.is_file() else sorted(place.rglob("*.zip"))
    for archive in archives:
        try:
            with zipfile.ZipFile(archive) as opened:
                for name in sorted(each for each in opened.namelist() if each.endswith(".json")):
                    yield f"{archive}: {name}", opened.read(name)
        except zipfile.BadZipFile as error:
            raise Unreadable(f"{archive}: {error}") from error
    if place.is_dir():
        yield from ((str(file), file.read_bytes()) for file in sorted(place.rglob("*.json")))


def _is(text: str, version: Version) -> bool:
    try:
        return Version(text) == version
    except InvalidVersion:
        return False


def _inside(events: tuple[Event, ...], version: Version) -> bool:
    """Return True if the last event at or below this version leaves it affected."""
    is_inside = False
    for at, _, event in sorted(((*_place(event), event) for event in events), key=lambda each: each[:2]):
        if event.introduced is not None and at <= version:
            is_inside = True
        elif at < version or (event.fixed is not None and at == version):
            is_inside = False
    return is_inside


def _place(event: Event) -> tuple[Version, int]:
    if event.introduced is not None:
        return Version("0.dev0" if event.introduced == "0" else event.introduced), 0
    return Version(event.fixed or event.last_affected or "0.dev0"), 1
