"""The fence: a publisher that was leader once must not overwrite what its successor publishes.

Each leadership has a number, higher than every one before. The highest that was ever seen is kept on disk and in the
database, and a publication with a lower one, or without one, is refused. Where no publisher sends a number, nothing is
fenced.

The disk answers while the database is away; the database remembers where the disk does not outlive the process (a pod's
directory), and knows what other registries have seen. A process asks it at its first publication, and tells it of each
new leadership.
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
"""Blocks. The highest leadership that the database knows, with this one; DatabaseUnavailable."""


class Fenced(Exception):
    """A leadership after this one has published: stop, or lead again under a number above `highest`."""

    def __init__(self, message: str, highest: int) -> None:
        super().__init__(message)
        self.highest = highest


class Fence:
    """Owned by one event loop; `admit` writes to disk and database when a new leadership begins."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._raise_to: RaiseTo | None = None
        self._is_told = False  # the database knows of `highest`, and we of what it knew
        self.highest = 0

    def load(self) -> None:
        """ValueError where the file is not what `admit` wrote."""
        with contextlib.suppress(FileNotFoundError):
            self.highest = int(self._file.read_text()[:_MAX_CHARS])

    def share(self, raise_to: RaiseTo) -> None:
        """Keep it in the database as well."""
        self._raise_to = raise_to

    def check(self, token: int) -> None:
        """Fenced where a later leadership has published."""
        if token < self.highest:
            who = f"leadership {token}" if token else "no leadership named"
            raise Fenced(f"{who}: leadership {self.highest} has published; only it or a later one may", self.highest)

    def admit(self, token: int) -> None:
        """Blocks. From now on, also after a restart, nobody below it may publish. Fenced; OSError as it comes."""
        known = self._known_to_database(token)
        if known > self.highest:
            self._keep(known)
        self.check(token)
        if token > self.highest:
            self._keep(token)

    def _known_to_database(self, token: int) -> int:
        """Asked once, and for each new leadership; 0 where it cannot say, and then again the next time."""
        if self._raise_to is None or (self._is_told and token <= self.highest):
            return 0
        try:
            known = self._raise_to(max(token, self.highest))
        except DatabaseUnavailable as error:
            _log.warning("the fence is kept on this disk alone: %s", error)
            self._is_told = False
            return 0
        self._is_told = True
        return known

    def _keep(self, token: int) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._file.with_name(self._file.name + ".tmp")
        with temporary.open("w") as file:
            file.write(str(token))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._file)
        self.highest = token
