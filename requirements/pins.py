"""Pins of a lock: name, version, platform marker, and the hash of every file that may be installed."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PROJECT = Path(__file__).parents[1]
LOCKS = PROJECT / "requirements"
ENGINE_LOCKS = PROJECT / "functions" / "controller" / "local" / "prepare"
_ENTRY = re.compile(r"^(\S+==[^\\\n]+?) \\$((?:\n    --hash=sha256:[0-9a-f]{64}(?: \\)?$)+)", re.MULTILINE)
_HASH = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Pin:
    name: str  # canonical
    version: Version
    marker: Marker | None
    sha256: tuple[str, ...]  # sorted

    def is_for(self, environment: Mapping[str, str]) -> bool:
        return self.marker is None or self.marker.evaluate(dict(environment))


def all_locks() -> list[Path]:
    return [*sorted(LOCKS.glob("*.txt")), *sorted(ENGINE_LOCKS.glob("*.lock.txt"))]


def pins(lock: Path) -> Iterator[Pin]:
    for text, hashes in _ENTRY.findall(lock.read_text()):
        requirement = Requirement(text)
        (specifier,) = requirement.specifier
        digests = tuple(sorted(_HASH.findall(hashes)))
        yield Pin(canonicalize_name(requirement.name), Version(specifier.version), requirement.marker, digests)
