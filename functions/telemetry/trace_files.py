"""Trace files: rows as NDJSON in one directory, readable for people, and the spool of rows for a store.

    requests-<Unix milliseconds>-<pid>.ndjson

Several processes may write to one directory (a gateway and its successor). Each has its own files and holds a lock
on the one it writes. A free lock means that no process will complete the half line that a killed one left. The
total size is bounded: a process that starts a file removes the oldest ones beyond the limit, of any process, except
those being written.

A file never has half a line in its middle. If the disk fills up during a write, whole lines stay (they may have
been read) and the half one is cut off. Written lines survive the process; a power cut loses at most those of the
last `sync_every_s`.

Neighbours: `trace_row` reads the same files; `trace_shipping` sends their content.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from functions.telemetry.trace_row import PATTERN

MAX_FILES = 1024  # limit for many short-lived processes: each file has a cost


class PartlyWritten(OSError):
    """The disk stored some of the lines, or none."""

    def __init__(self, lines: int, cause: OSError) -> None:
        super().__init__(cause.errno, cause.strerror)
        self.lines = lines


class TraceFiles:
    """Writer of trace files, for one thread. Every method may raise OSError."""

    def __init__(
        self,
        directory: Path,
        file_bytes: int,
        max_bytes: int,
        *,
        sync_every_s: float = 1.0,
        before_removal: Callable[[Path], None] | None = None,
    ) -> None:
        """Create a writer; it calls `before_removal` with each file before it is removed."""
        self._directory = directory
        self._file_bytes = file_bytes
        self._max_bytes = max_bytes
        self._sync_every_s = sync_every_s
        self._before_removal = before_removal
        self._descriptor: int | None = None
        self._written_bytes = 0
        self._unsynced_since_s: float | None = None

    def write(self, lines: list[bytes], now_unix_s: float) -> None:
        """Append whole lines, which readers see immediately. Raises PartlyWritten; after another OSError no line
        was written."""
        descriptor = self._descriptor
        if descriptor is None or self._written_bytes >= self._file_bytes:
            descriptor = self._open_next_file(now_unix_s)
        data = b"".join(line + b"\n" for line in lines)
        if self._unsynced_since_s is None:
            self._unsynced_since_s = now_unix_s
        taken_bytes = 0
        try:
            while taken_bytes < len(data):  # a disk that fills up writes a part, and fails at the next write
                taken_bytes += os.write(descriptor, data[taken_bytes:] if taken_bytes else data)
        except OSError as error:
            whole = data.rfind(b"\n", 0, taken_bytes) + 1
            os.ftruncate(descriptor, self._written_bytes + whole)
            self._written_bytes += whole
            raise PartlyWritten(data.count(b"\n", 0, whole), error) from error
        self._written_bytes += len(data)

    def sync(self, now_unix_s: float) -> None:
        """Sync the current file to the disk if its oldest unsynced line was written `sync_every_s` ago."""
        since_s = self._unsynced_since_s
        if self._descriptor is not None and since_s is not None and now_unix_s - since_s >= self._sync_every_s:
            os.fdatasync(self._descriptor)
            self._unsynced_since_s = None

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)  # releases the lock

    def _open_next_file(self, now_unix_s: float) -> int:
        self.close()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._directory / f"requests-{int(now_unix_s * 1000):013d}-{os.getpid()}.ndjson"
        self._descriptor = descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._written_bytes = os.fstat(descriptor).st_size
        self._unsynced_since_s = None
        self._remove_oldest()
        return descriptor

    def _remove_oldest(self) -> None:
        """Remove the oldest files until a whole new file has room and there are at most MAX_FILES; files that a
        process still writes to stay."""
        sizes = [(path, size) for path in sorted(self._directory.glob(PATTERN)) if (size := size_of(path)) is not None]
        held_bytes, number = sum(size for _, size in sizes), len(sizes)
        for path, size in sizes:
            if held_bytes + self._file_bytes <= self._max_bytes and number <= MAX_FILES:
                return
            if is_finished(path):
                if self._before_removal is not None:
                    self._before_removal(path)
                path.unlink(missing_ok=True)
                held_bytes, number = held_bytes - size, number - 1


def size_of(path: Path) -> int | None:
    """Return the file's size in bytes; None if it has been removed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def is_finished(path: Path) -> bool:
    """Return True if the file exists and no process writes to it any more."""
    with try_lock(path, fcntl.LOCK_SH, create=False) as mine:
        return mine


@contextmanager
def try_lock(path: Path, how: int = fcntl.LOCK_EX, *, create: bool = True) -> Iterator[bool]:
    """Lock the file while the block runs and yield True; yield False if it is locked already, or missing while `create`
    is False. A process that dies releases its lock."""
    try:
        descriptor = os.open(path, (os.O_RDWR | os.O_CREAT if create else os.O_RDONLY) | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
