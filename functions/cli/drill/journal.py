"""Undo journal of a drill. Each entry is stored on disk before its change, so the next drill can undo a killed one.

Entries are values, undone in the reverse order of the changes. Each may be undone twice: a running process, a revoked
key and a reverted commit stay as they are. An entry that fails is kept and retried by the next drill; the entries below
it are still undone.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from functions.controller.local.files import replace_file

JOURNAL_FILE = "drill-to-take-back.json"
_MAX_BYTES = 1024 * 1024
_MOST = 500


class Continue(msgspec.Struct, frozen=True, tag="continue"):
    """Send SIGCONT to every process of a session, if it is still the one that was stopped."""

    name: str
    pid: int
    started_at: float


class StartController(msgspec.Struct, frozen=True, tag="start-controller"):
    """Start a controller if none answers."""


class SetFaults(msgspec.Struct, frozen=True, tag="set-faults"):
    """Restore the fault switches of a simulated engine."""

    port: int
    faults: dict[str, bool | int | float | str | None]


class Revert(msgspec.Struct, frozen=True, tag="revert"):
    """Revert a pushed commit."""

    commit: str


class RevokeKey(msgspec.Struct, frozen=True, tag="revoke-key"):
    tenant: str
    key_id: str


class PutBack(msgspec.Struct, frozen=True, tag="put-back"):
    """Restore a replaced file from the copy next to it."""

    path: str
    aside: str


class Remove(msgspec.Struct, frozen=True, tag="remove"):
    path: str


class RestoreWindows(msgspec.Struct, frozen=True, tag="restore-windows"):
    """Restore the alerts' production windows."""


Undoing = Continue | StartController | SetFaults | Revert | RevokeKey | PutBack | Remove | RestoreWindows


class JournalUnreadable(Exception):
    """The journal cannot be read or is full. The message says what to check."""


class UndoJournal:
    """The journal file. Only the process that holds the drill lock may write it."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / JOURNAL_FILE
        self._entries = self._read()

    @property
    def entries(self) -> tuple[Undoing, ...]:
        return tuple(self._entries)

    @property
    def mark(self) -> int:
        """Number of entries now, which limits a later undo to the entries after it."""
        return len(self._entries)

    def add(self, undoing: Undoing) -> None:
        """Store an entry; raise JournalUnreadable if the journal is full. Call this before the change that it
        undoes."""
        if len(self._entries) >= _MOST:
            raise JournalUnreadable(f"{self._file} has {_MOST} entries, which is more than a drill may change")
        self._entries.append(undoing)
        self._write()

    def roll_back(self, do: Callable[[Undoing], None], down_to: int = 0) -> list[str]:
        """Undo the entries after the mark `down_to`, the last one first. Keep those that fail, and return their errors
        as text."""
        kept, wrong = [], []
        while len(self._entries) > down_to:
            undoing = self._entries.pop()
            try:
                do(undoing)
            except Exception as error:  # a failed entry must not block the others
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
                f"{self._file} cannot be read ({error}): undo what an earlier drill left, and remove the file"
            ) from error

    def _write(self) -> None:
        if self._entries:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._file, msgspec.json.format(msgspec.json.encode(self._entries), indent=1), durable=True)
        else:
            self._file.unlink(missing_ok=True)
