"""Spool of usage: sums on disk until the registry has counted them, each once.

    <directory>/<source>/lock               held by the process that writes there, for as long as it lives
    <directory>/<source>/<sequence>.ndjson  a line for each time that sums were written: a JSON array of rows

The file with the highest number is open and grows; the others are whole. A report is the sum of one file, and has its
number: sent again after an answer that was lost, or by another process after a kill, it has the same rows and the same
id, and the registry counts it once. What a process that was killed has left, any other with the same directory delivers
(`abandoned`): the lock tells that nobody writes there any more, and one deliverer keeps the order.

A line is either whole, and then counted, or has no end, and then never was: the write that was cut off. Where a write
fails, the file is cut to what was good before anything else is written, and the caller keeps its rows.

A file that grows while the registry is away is written anew as its sum, so that it takes as much room as there are
tenants and models in an hour, not seconds. All together are bounded: beyond it, nothing more is taken.
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

SPOOL_BYTES = 64 * 1024 * 1024  # a row has about 400: 160,000 of an hour, a tenant and a model
COMPACT_BYTES = 4 * 1024 * 1024  # of lines; as a sum, most are a hundredth of it
MOST_BYTES = 3 * REPORT_ROWS * 450 + 2 * COMPACT_BYTES  # of the open file, of `sums`, and lines as they are compacted
_SUFFIX = ".ndjson"
_BEGINNING_S = 600.0
_rows_decoder = msgspec.json.Decoder(list[UsageRow])


class SpoolFull(OSError):
    """As much waits for the registry as may."""


class Pending:
    """A whole file that the registry has not counted, as far as is known."""

    def __init__(self, path: Path, source: Source, sequence: int) -> None:
        self.path = path
        self.source = source
        self.sequence = sequence

    def report(self, gateway_id: str) -> UsageReport:
        rows: dict[UsageKey, UsageRow] = {}
        merge(rows, _rows_in(self.path))
        return UsageReport(self.source, self.sequence, gateway_id, tuple(rows.values()))

    def done(self) -> None:
        """It is counted."""
        self.path.unlink(missing_ok=True)

    def refused(self) -> None:
        """The registry will never take it: kept for people, out of the way."""
        self.path.rename(self.path.with_suffix(".refused"))


class UsageSpool:
    """The writing side of one process. Blocks; may be used from several threads. OSError where the disk fails."""

    def __init__(self, directory: Path, spool_bytes: int = SPOOL_BYTES, compact_bytes: int = COMPACT_BYTES) -> None:
        self.source: Source = uuid.uuid4().hex
        self.directory = directory
        self._own = directory / self.source
        self._spool_bytes, self._compact_bytes = spool_bytes, compact_bytes
        self._turn = threading.Lock()
        self._lock: BinaryIO | None = None
        self._file: BinaryIO | None = None
        self._sequence = 1
        self._good_bytes = 0  # of the open file
        self._rows: dict[UsageKey, UsageRow] = {}  # of the open file
        self._compact_at = compact_bytes

    def write(self, rows: list[UsageRow]) -> None:
        """Return once they are on the disk; OSError, and then none of them count."""
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
        """The whole files, in their order; the open one is whole from now on, where there are no others."""
        with self._turn:
            whole = self._whole()
            if not whole and self._rows:
                self._begin_next()
                whole = self._whole()
            return whole

    def abandoned(self) -> Iterator[list[Pending]]:
        """What each process that is gone has left; nobody else delivers it meanwhile."""
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
        """Of this process."""
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

    # under the lock

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
        """Write the open file anew, as its sum: all of it, or it stays as it is."""
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
    """Whether its process may be about to take the lock, which it does before its first file."""
    return not _files(directory) and time.time() - directory.stat().st_mtime < _BEGINNING_S


def _locked(directory: Path) -> BinaryIO | None:
    """The directory's lock, held until it is closed; None where another process holds it."""
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
        return  # what the registry refused is still there


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _directory_to_disk(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
