"""Spool of usage: sums on disk until the registry has counted them, each exactly once.

    <directory>/<source>/lock               locked by the process that writes there, while it lives
    <directory>/<source>/<sequence>.ndjson  one line for each write of sums: a JSON array of rows

The file with the highest number is open and grows; the others are complete. A report is the sum of one file, and has
its number. If it is sent again after a lost answer, or by another process after a kill, it has the same rows and the
same id, and the registry counts it once. Another process with the same directory delivers the files of a killed one
(`abandoned`): the free lock shows that no process writes there any more, and a single deliverer preserves the order.

A line is either complete and counted, or has no end and is ignored: its write was interrupted. If a write fails, the
file is truncated to its valid lines before the next write, and the caller retains its rows.

A file that grows while the registry is unreachable is rewritten as its sum, so that its size depends on tenants and
models per hour, not on seconds. The total size is limited; beyond the limit, writes are rejected.
"""

import fcntl
import os
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from functions.fleet.usage_report import REPORT_ROWS, Source, UsageKey, UsageReport, UsageRow, merge

SPOOL_BYTES = 64 * 1024 * 1024  # a row has about 400 bytes: 160,000 rows of an hour, a tenant and a model
COMPACT_BYTES = 4 * 1024 * 1024  # bytes of lines; as a sum, most are a hundredth of it
MOST_BYTES = 3 * REPORT_ROWS * 450 + 2 * COMPACT_BYTES  # the open file, `sums`, and lines during compaction
_SUFFIX = ".ndjson"
_BEGINNING_S = 600.0
_rows_decoder = msgspec.json.Decoder(list[UsageRow])


class SpoolFull(OSError):
    """The spool's size limit is reached while usage waits for the registry."""


class Pending:
    """A complete file that the registry has not confirmed yet."""

    def __init__(self, path: Path, source: Source, sequence: int) -> None:
        self.path = path
        self.source = source
        self.sequence = sequence

    def report(self, gateway_id: str) -> UsageReport:
        rows: dict[UsageKey, UsageRow] = {}
        merge(rows, _rows_in(self.path))
        return UsageReport(self.source, self.sequence, gateway_id, tuple(rows.values()))

    def delete(self) -> None:
        """Delete the file, because the registry has counted it."""
        self.path.unlink(missing_ok=True)

    def set_aside(self) -> None:
        """Rename the file to `.refused`, for inspection, because the registry will never accept it."""
        self.path.rename(self.path.with_suffix(".refused"))


class UsageSpool:
    """The writing side of one process. Blocks; may be used from several threads. Raises OSError if the disk fails."""

    def __init__(self, directory: Path, spool_bytes: int = SPOOL_BYTES, compact_bytes: int = COMPACT_BYTES) -> None:
        self.source: Source = uuid.uuid4().hex
        self.directory = directory
        self._own = directory / self.source
        self._spool_bytes, self._compact_bytes = spool_bytes, compact_bytes
        self._turn = threading.Lock()
        self._lock: BinaryIO | None = None
        self._file: BinaryIO | None = None
        self._sequence = 1
        self._good_bytes = 0  # valid bytes of the open file
        self._rows: dict[UsageKey, UsageRow] = {}  # rows of the open file
        self._compact_at = compact_bytes

    def write(self, rows: list[UsageRow]) -> None:
        """Append the rows to the open file and return once they are on disk; after OSError, none of them count.

        Raise SpoolFull if too much waits for the registry already.
        """
        with self._turn:
            file = self._opened()
            line = msgspec.json.encode(rows) + b"\n"
            if self._good_bytes + len(line) > self._compact_at:
                self._compact()
                file = self._opened()
            new = sum(1 for row in rows if (row.hour, *_names(row)) not in self._rows)
            if len(self._rows) + new > REPORT_ROWS and self._rows:
                self._begin_next()
                file = self._opened()
            if self.waiting_bytes() + len(line) > self._spool_bytes:
                raise SpoolFull(f"{self._spool_bytes} bytes of usage wait for the registry")
            file.seek(self._good_bytes)
            file.truncate()
            file.write(line)
            _to_disk(file)
            self._good_bytes += len(line)
            merge(self._rows, rows)

    def pending(self) -> list[Pending]:
        """Return the complete files in order; if there are none, complete and return the open file if it has rows."""
        with self._turn:
            whole = self._whole()
            if not whole and self._rows:
                self._begin_next()
                whole = self._whole()
            return whole

    def abandoned(self) -> Iterator[list[Pending]]:
        """Yield the files of each process that has ended, locked so that no other process delivers them meanwhile.

        A directory whose files are all gone afterwards is removed.
        """
        for directory in sorted(self.directory.glob("*/")):
            if directory == self._own or _is_beginning(directory):
                continue
            lock = _locked(directory)
            if lock is None:
                continue
            with lock:
                left = _files(directory)
                yield left
                if not _files(directory):
                    _remove(directory)

    def waiting_bytes(self) -> int:
        return sum(path.stat().st_size for path in self._own.glob(f"*{_SUFFIX}"))

    def close(self) -> None:
        with self._turn:
            if self._file is not None:
                self._file.close()
                self._file = None
            if self._lock is not None:
                if not self.waiting_bytes():
                    _remove(self._own)
                self._lock.close()
                self._lock = None

    # called with the lock held

    def _opened(self) -> BinaryIO:
        if self._lock is None:
            self._own.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _locked(self._own)
            if self._lock is None:
                raise OSError(f"{self._own} is locked by another process")
        if self._file is None:
            self._file = self._path(self._sequence).open("ab+", buffering=0)
            _directory_to_disk(self._own)
        return self._file

    def _path(self, sequence: int) -> Path:
        return self._own / f"{sequence:012d}{_SUFFIX}"

    def _whole(self) -> list[Pending]:
        return [each for each in _files(self._own) if each.sequence < self._sequence]

    def _begin_next(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._rows, self._good_bytes = None, {}, 0
        self._sequence += 1
        self._compact_at = self._compact_bytes

    def _compact(self) -> None:
        """Replace the open file, atomically, by one with the sum of its rows."""
        path = self._path(self._sequence)
        fresh = path.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(msgspec.json.encode(list(self._rows.values())) + b"\n")
            _to_disk(file)
        fresh.replace(path)
        _directory_to_disk(self._own)
        if self._file is not None:
            self._file.close()
        self._file, self._good_bytes = None, path.stat().st_size
        self._compact_at = self._good_bytes + self._compact_bytes


def _names(row: UsageRow) -> tuple[str, str, str, str, str]:
    return row.tenant, row.model, row.version, row.pool, row.service_class


def _files(directory: Path) -> list[Pending]:
    return [Pending(path, directory.name, int(path.stem)) for path in sorted(directory.glob(f"*{_SUFFIX}"))]


def _rows_in(path: Path) -> Iterator[UsageRow]:
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield from _rows_decoder.decode(line)


def _is_beginning(directory: Path) -> bool:
    """Return True if the directory's process may be about to lock it, which it does before its first file."""
    return not _files(directory) and time.time() - directory.stat().st_mtime < _BEGINNING_S


def _locked(directory: Path) -> BinaryIO | None:
    """Return the directory's lock, held until closed, or None if another process holds it or it cannot be opened."""
    try:
        lock = (directory / "lock").open("wb")
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


def _remove(directory: Path) -> None:
    for path in directory.glob("*"):
        if path.suffix != ".refused":
            path.unlink(missing_ok=True)
    try:
        directory.rmdir()
    except OSError:
        return  # files that the registry refused are still there


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _directory_to_disk(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
