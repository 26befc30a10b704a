"""What adapters are checked against: the facts of each base model, read from its folder, and again when that changes.

    base's name, folder → (folder, stamp of its files) as it was?  yes: the facts at hand    no: read them

The fingerprint tells facts apart: what was checked against one is not taken as checked against another, also where a
pool has moved to another folder under the same name.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from functions.artifacts.base_facts import BaseFacts, Stamp, facts_of, fingerprint_of, stamp_of
from functions.artifacts.errors import ArtifactError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KnownBase:
    facts: BaseFacts
    fingerprint: str


@dataclass(slots=True)
class Bases:
    """All of it blocks on the disk; any number of threads may ask: what one of them forgets is read again."""

    models_dir: Path | None  # base models by folder; None: there are no facts, shapes are left to the engine
    _read: dict[str, tuple[PurePosixPath, Stamp, KnownBase]] = field(default_factory=dict)  # by base: its last

    def known(self, base: str, folder: PurePosixPath) -> KnownBase | None:
        """The base's facts as its folder has them now; None where they are not at hand: the next call looks again."""
        directory = self.models_dir / folder if self.models_dir is not None else None
        if directory is None or ".." in folder.parts or not directory.is_dir():
            return None
        try:
            stamp = stamp_of(directory)
            before = self._read.get(base)
            if before is not None and before[:2] == (folder, stamp):
                return before[2]
            facts = facts_of(directory, names=(base, folder.name))
        except ArtifactError as error:
            _log.warning("adapters of %s are not checked against its weights: %s", base, error)
            return None
        found = KnownBase(facts, fingerprint_of(facts))
        self._read[base] = (folder, stamp, found)
        return found
