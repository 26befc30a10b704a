"""Snapshot on disk, from which a process starts if the registry cannot be reached.

The file is a journal of frames: a whole snapshot, then the later deltas. A change of one tenant among 50,000 is
stored by writing 400 bytes instead of 30 MB, before the change is used. The file is rewritten if the deltas outgrow
the whole, or another process has changed the file.

A file with a flipped byte is rejected. A torn last frame, which a crash leaves, is ignored: everything before it is
whole.

Neighbours: `snapshot_frames` reads and writes frames; `snapshots` stores a follower's cache here, the registry its
document.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from functions.api import snapshot_document as documents
from functions.api.snapshot import SnapshotInvalid
from functions.api.snapshot_document import BaseMissing, in_chunks
from functions.api.snapshot_index import Indexed, empty, without_pause
from functions.api.snapshot_tree import Breathe
from functions.fleet import snapshot_frames as frames

MAX_DELTAS = 100


@dataclass(slots=True)
class SnapshotFile:
    """Store snapshots and decide if a delta suffices. Methods block: call them from a thread, one call at a time."""

    path: Path
    _held: str = ""  # hash of the content that the file ends with, as far as known; empty: rewrite the file
    _seen: tuple[int, int] = (0, 0)  # inode and size after the last access: another process may share the file
    _whole_bytes: int = 0
    _delta_bytes: int = 0
    _deltas: int = 0

    def load(self, breathe: Breathe = without_pause) -> Indexed | None:
        """Return the file's content, or None if there is no file. Raise SnapshotInvalid if it cannot be read or
        trusted."""
        self._held = ""
        try:
            with self.path.open("rb") as file:
                content = self._read(file, breathe)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SnapshotInvalid(f"{self.path} cannot be read: {error}") from error
        except SnapshotInvalid as error:
            raise SnapshotInvalid(f"{self.path}: {error}") from error
        self._seen = self._file_state()
        return content

    def record_confirmation(self, unix_s: float) -> None:
        """Record when the content was last confirmed as the newest, as the file's time. A missing file is no error."""
        with contextlib.suppress(OSError):
            os.utime(self.path, (unix_s, unix_s))

    def confirmed_unix_s(self) -> float | None:
        """Return when the content was last confirmed as the newest, by the clock of the process that recorded it; None
        if there is no file."""
        with contextlib.suppress(OSError):
            return self.path.stat().st_mtime
        return None

    def store(
        self, content: Indexed, delta: bytes = b"", base_hash: str = "", breathe: Breathe = without_pause
    ) -> None:
        """Make the file end with `content`: append `delta` if the file holds its base and has room for it, else write
        the whole content. OSError if the disk fails."""
        if delta and self._held == base_hash and self._has_room(delta) and self._file_state() == self._seen:
            self._held = ""  # until the append is complete
            frames.append(self.path, delta)
            self._delta_bytes += len(delta)
            self._deltas += 1
        else:
            self._held = ""
            self._whole_bytes = frames.replace(self.path, documents.full_lines(content.snapshot), breathe)
            self._delta_bytes = self._deltas = 0
        self._held, self._seen = content.content_hash, self._file_state()

    def _has_room(self, delta: bytes) -> bool:
        return self._deltas < MAX_DELTAS and self._delta_bytes + len(delta) <= self._whole_bytes

    def _read(self, file: BinaryIO, breathe: Breathe) -> Indexed:
        content: Indexed | None = None
        sound = True
        self._whole_bytes = self._delta_bytes = self._deltas = 0
        while self._deltas <= MAX_DELTAS:
            try:
                chunks = frames.next_frame(file)
            except frames.Torn as error:
                if content is None:
                    raise SnapshotInvalid("it is truncated") from error
                sound = False
                break
            if chunks is None:
                break
            size_bytes = sum(map(len, chunks))
            try:
                content = documents.read(chunks, content or empty(), breathe)
            except BaseMissing:
                sound = False  # another process that shares the file appended content that was already there
            self._deltas += bool(self._whole_bytes)
            self._delta_bytes += size_bytes if self._whole_bytes else 0
            self._whole_bytes = self._whole_bytes or size_bytes
        if content is None:
            raise SnapshotInvalid("it holds no snapshot")
        self._held = content.content_hash if sound else ""
        return content

    def _file_state(self) -> tuple[int, int]:
        try:
            status = self.path.stat()
        except OSError:
            return (0, 0)
        return status.st_ino, status.st_size


def write(path: Path, document: bytes) -> None:
    """Replace the file's content by one whole document. OSError if the disk fails, and the old file stays."""
    frames.replace(path, in_chunks(document), without_pause)


def read(path: Path) -> Indexed | None:
    """Return the stored content, or None if there is no file. Raise SnapshotInvalid if it cannot be read or trusted."""
    return SnapshotFile(path).load()
