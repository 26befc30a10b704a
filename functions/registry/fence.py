"""The fence: a publisher that was leader once must not overwrite what its successor publishes.

Each leadership has a number, higher than every one before. The highest that was ever seen is kept on disk, and a
publication with a lower one, or without one, is refused. Where no publisher sends a number, nothing is fenced.
"""

import contextlib
import os
from pathlib import Path

_MAX_CHARS = 40


class Fenced(Exception):
    """Another publisher leads now; stop publishing."""


class Fence:
    """Owned by one event loop; `admit` writes to the disk when a new leadership begins."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.highest = 0

    def load(self) -> None:
        """ValueError where the file is not what `admit` wrote."""
        with contextlib.suppress(FileNotFoundError):
            self.highest = int(self._file.read_text()[:_MAX_CHARS])

    def check(self, token: int) -> None:
        """Fenced where a later leadership has published."""
        if token < self.highest:
            who = f"leadership {token}" if token else "no leadership named"
            raise Fenced(f"{who}: leadership {self.highest} has published; only it or a later one may")

    def admit(self, token: int) -> None:
        """Blocks. From now on, also after a restart, nobody below it may publish. OSError as it comes."""
        if token <= self.highest:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._file.with_name(self._file.name + ".tmp")
        with temporary.open("w") as file:
            file.write(str(token))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._file)
        self.highest = token
