"""Fencing of publishers: a former leader must not overwrite what its successor publishes.

Each leadership has a number, higher than all before. The registry stores the highest number that it has seen on disk
and in the database. It rejects publications with a lower number or with none. If no publisher ever sends a number,
nothing is rejected.

The disk is used while the database is unavailable. The database keeps the number if the disk does not outlive the
process (a pod's directory), and shares it with other registries. A process reads it at its first publication, and
writes it at each new leadership.
"""

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

from functions.registry.sql.errors import DatabaseUnavailable

_MAX_CHARS = 40
_log = logging.getLogger(__name__)

RaiseTo = Callable[[int], int]
"""Function that raises the database's highest leadership to this number if it is lower, and returns the highest.
Blocks. Raises DatabaseUnavailable."""


class Fenced(Exception):
    """Raised because a later leadership has published. Stop, or become leader again with a number above `highest`."""

    def __init__(self, message: str, highest: int) -> None:
        super().__init__(message)
        self.highest = highest


class Fence:
    """Highest leadership seen. Owned by one event loop; `admit` writes to disk and database for a new leadership."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._raise_to: RaiseTo | None = None
        self._is_told = False  # True if `highest` and the database's number have been exchanged
        self.highest = 0

    def load(self) -> None:
        """Load the highest leadership from disk; a missing file leaves 0. Raises ValueError if the file's content is
        not a number."""
        with contextlib.suppress(FileNotFoundError):
            self.highest = int(self._file.read_text()[:_MAX_CHARS])

    def use_database(self, raise_to: RaiseTo) -> None:
        """Store each later highest leadership in the database as well, with `raise_to`."""
        self._raise_to = raise_to

    def check(self, token: int) -> None:
        """Raise Fenced if a later leadership than `token` has published. 0 means that the publisher named none."""
        if token < self.highest:
            who = f"leadership {token}" if token else "no leadership named"
            raise Fenced(f"{who}: leadership {self.highest} has published; only it or a later one may", self.highest)

    def admit(self, token: int) -> None:
        """Record the leadership `token` durably, and reject lower ones from now on. Blocks. Raises Fenced if a later
        one has published, or OSError."""
        known = self._known_to_database(token)
        if known > self.highest:
            self._store(known)
        self.check(token)
        if token > self.highest:
            self._store(token)

    def _known_to_database(self, token: int) -> int:
        """Exchange the highest leadership with the database, once and for each new one, and return the database's; 0 if
        there is nothing to exchange. If the database is unavailable, return 0 and try again at the next publication."""
        if self._raise_to is None or (self._is_told and token <= self.highest):
            return 0
        try:
            known = self._raise_to(max(token, self.highest))
        except DatabaseUnavailable as error:
            _log.warning("the leadership is stored only on this disk: %s", error)
            self._is_told = False
            return 0
        self._is_told = True
        return known

    def _store(self, token: int) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._file.with_name(self._file.name + ".tmp")
        with temporary.open("w") as file:
            file.write(str(token))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._file)
        self.highest = token
