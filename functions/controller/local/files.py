"""Files of the state directory: locks, replacement by rename, and one bounded log per process.

A lock is held through an open descriptor, so the kernel releases it when the last process with that descriptor ends.
A log's size is checked only when its process starts. A process has at most two logs of about LOG_MAX_BYTES each,
unless one run writes more.
"""

import fcntl
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from functions.artifacts.directories import sync_directory


class LockTaken(Exception):
    """Another process holds the lock."""


@contextmanager
def lock_held(path: Path) -> Iterator[int]:
    """Hold the lock file while the body runs, or raise LockTaken immediately. The descriptor is yielded for child
    processes to inherit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockTaken(f"another process holds {path}") from error
        yield descriptor
    finally:
        os.close(descriptor)


LOG_MAX_BYTES = 20 * 1024 * 1024
_TAIL_MAX_BYTES = 64 * 1024


def open_log(path: Path) -> BinaryIO:
    """Open the log for appending. A log above LOG_MAX_BYTES first replaces the former `<name>.log.1`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_MAX_BYTES:
        path.replace(path.with_name(path.name + ".1"))
    return path.open("ab", buffering=0)


def last_lines(path: Path, count: int) -> list[str]:
    """Return at most `count` last lines of a log, or none if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_MAX_BYTES))
            text = file.read(_TAIL_MAX_BYTES).decode(errors="replace")
    except OSError:
        return []
    return list(deque(text.splitlines(), maxlen=count))


def replace_file(path: Path, content: bytes, mode: int = 0o600, *, durable: bool = False) -> None:
    """Write the file by rename: a reader sees the old content or the new content, never a part of it. With `durable`,
    the new content also survives a power cut."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    partial.replace(path)
    if durable:
        sync_directory(path.parent)
