"""Locks between the processes of one node, which the kernel frees when their holder dies (flock).

A lock file is removed by whoever holds it, when done: nothing piles up. So a lock counts only if its path still names
what was locked; otherwise it was removed in between, and is tried again.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def try_lock_file(path: Path) -> Iterator[bool]:
    """Whether the lock was to be had at once; it is held inside, and its file is gone afterwards."""
    descriptor = _try(path, fcntl.LOCK_EX, os.O_RDWR | os.O_CREAT)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            path.unlink(missing_ok=True)  # while it is held: whoever waits for it makes a new one
            os.close(descriptor)


@contextmanager
def try_lock_directory(path: Path, *, shared: bool = False) -> Iterator[bool]:
    """Whether the directory is there and its lock was to be had at once; it is held inside."""
    try:
        descriptor = _try(path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        descriptor = None
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _try(path: Path, kind: int, flags: int) -> int | None:
    """A descriptor that holds the lock of what lies at `path` now, or None. OSError where it cannot be opened."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):  # held by another; removed meanwhile
        os.close(descriptor)
        return None
    os.close(descriptor)
    return None
