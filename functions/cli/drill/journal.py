"""Journal of what a drill has yet to take back, on disk before each change: whoever ends it, the next one knows.

An undoing is a value, done in the reverse order of the changes. Each may be done twice: a process that goes on already,
a key that is revoked, a commit that is reverted are left as they are. One that fails is kept and tried again by the
next drill, those below it are done all the same.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from functions.controller.local.files import replace_file

JOURNAL_FILE = "drill-to-take-back.json"
_MAX_BYTES = 1024 * 1024
_MOST = 500


class Continue(msgspec.Struct, frozen=True, tag="continue"):
    """SIGCONT to every process of a session, if it is still the one that was stopped."""

    name: str
    pid: int
    started_at: float


class StartController(msgspec.Struct, frozen=True, tag="start-controller"):
    """Where none answers."""


class SetFaults(msgspec.Struct, frozen=True, tag="set-faults"):
    """A simulated engine's switches, as they were; one that was started anew meanwhile has its own."""

    port: int
    faults: dict[str, bool | int | float | str | None]


class Revert(msgspec.Struct, frozen=True, tag="revert"):
    """A commit that was pushed."""

    commit: str


class RevokeKey(msgspec.Struct, frozen=True, tag="revoke-key"):
    tenant: str
    key_id: str


class PutBack(msgspec.Struct, frozen=True, tag="put-back"):
    """A file that was replaced, from beside it."""

    path: str
    aside: str


class Remove(msgspec.Struct, frozen=True, tag="remove"):
    """A file that was not there."""

    path: str


class RestoreWindows(msgspec.Struct, frozen=True, tag="restore-windows"):
    """Alerts look back as far as they do on production."""


Undoing = Continue | StartController | SetFaults | Revert | RevokeKey | PutBack | Remove | RestoreWindows


class JournalUnreadable(Exception):
    """The message says what to look at."""


class Journal:
    """One writer: whoever holds the lock of the fleet's drills."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / JOURNAL_FILE
        self._entries = self._read()

    @property
    def entries(self) -> tuple[Undoing, ...]:
        return tuple(self._entries)

    @property
    def mark(self) -> int:
        """How much there is to take back now: `take_back` goes down to a mark."""
        return len(self._entries)

    def add(self, undoing: Undoing) -> None:
        """Before what it undoes is done."""
        if len(self._entries) >= _MOST:
            raise JournalUnreadable(f"{self._file} has {_MOST} entries: a drill that changes so much is wrong")
        self._entries.append(undoing)
        self._write()

    def take_back(self, do: Callable[[Undoing], None], down_to: int = 0) -> list[str]:
        """Undo what was done since the mark, the last first; what went wrong, in words."""
        kept, wrong = [], []
        while len(self._entries) > down_to:
            undoing = self._entries.pop()
            try:
                do(undoing)
            except Exception as error:  # one that fails must not keep the others from being done
                wrong.append(f"{type(undoing).__name__}: {error}")
                kept.append(undoing)
        self._entries += reversed(kept)
        self._write()
        return wrong

    def _read(self) -> list[Undoing]:
        try:
            document = self._file.read_bytes()
        except FileNotFoundError:
            return []
        try:
            return msgspec.json.decode(document[:_MAX_BYTES], type=list[Undoing])
        except msgspec.DecodeError as error:
            raise JournalUnreadable(
                f"{self._file} cannot be read ({error}): look at what an earlier drill left, and remove it"
            ) from error

    def _write(self) -> None:
        if self._entries:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._file, msgspec.json.format(msgspec.json.encode(self._entries), indent=1), durable=True)
        else:
            self._file.unlink(missing_ok=True)
