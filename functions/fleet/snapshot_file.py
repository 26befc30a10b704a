"""Snapshot on disk: what a process starts from when the registry cannot be reached.

The file is a journal of frames: a whole snapshot first, then the deltas that came after it. So a change of one tenant
among 50,000 is kept by writing 400 bytes, not 30 MB, and is on the disk before it is used. When the deltas outgrow
the whole, or anybody else has touched the file, it is written anew.

A flipped byte is refused. A last frame that a crash tore is left out, since what stands before it is whole.

Neighbours: `snapshot_frames` reads and writes; `snapshots` keeps a follower's cache here, the registry its document.
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
    """Keeps what it is given, and knows when a delta suffices. Blocks: call it from a thread, one call at a time."""

    path: Path
    _held: str = ""  # the content that the file ends with, as far as we know; empty: write it anew
    _seen: tuple[int, int] = (0, 0)  # inode and size after our last look: another process may share the file
    _whole_bytes: int = 0
    _delta_bytes: int = 0
    _deltas: int = 0

    def load(self, breathe: Breathe = without_pause) -> Indexed | None:
        """What the file holds; None where there is none, SnapshotInvalid where it cannot be trusted."""
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
        self._seen = self._look()
        return content

    def vouched(self, unix_s: float) -> None:
        """The content was said to be the newest: the file's time says when that was last. A lost file is no error."""
        with contextlib.suppress(OSError):
            os.utime(self.path, (unix_s, unix_s))

    def vouched_unix_s(self) -> float | None:
        """By the clock of whoever wrote the file; None where there is none."""
        with contextlib.suppress(OSError):
            return self.path.stat().st_mtime
        return None

    def keep(self, content: Indexed, delta: bytes = b"", base_hash: str = "", breathe: Breathe = without_pause) -> None:
        """Make the file end with `content`, by its delta where the file holds the delta's base. OSError as it comes."""
        if delta and self._held == base_hash and self._has_room(delta) and self._look() == self._seen:
            self._held = ""  # until the append is whole
            frames.append(self.path, delta)
            self._delta_bytes += len(delta)
            self._deltas += 1
        else:
            self._held = ""
            self._whole_bytes = frames.replace(self.path, documents.full_lines(content.snapshot), breathe)
            self._delta_bytes = self._deltas = 0
        self._held, self._seen = content.content_hash, self._look()

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
                    raise SnapshotInvalid("it is torn") from error
                sound = False
                break
            if chunks is None:
                break
            size_bytes = sum(map(len, chunks))
            try:
                content = documents.read(chunks, content or empty(), breathe)
            except BaseMissing:
                sound = False  # somebody who shares the file appended what was there already
            self._deltas += bool(self._whole_bytes)
            self._delta_bytes += size_bytes if self._whole_bytes else 0
            self._whole_bytes = self._whole_bytes or size_bytes
        if content is None:
            raise SnapshotInvalid("it holds no snapshot")
        self._held = content.content_hash if sound else ""
        return content

    def _look(self) -> tuple[int, int]:
        try:
            status = self.path.stat()
        except OSError:
            return (0, 0)
        return status.st_ino, status.st_size


def write(path: Path, document: bytes) -> None:
    """Replace the file's content by one whole document; OSError where the disk refuses, and the old file stays."""
    frames.replace(path, in_chunks(document), without_pause)


def read(path: Path) -> Indexed | None:
    """The stored content; None where there is no file, SnapshotInvalid where it cannot be trusted."""
    return SnapshotFile(path).load()
