"""Locks between the processes of one node; the kernel releases them when their holder dies (flock).

The holder removes the lock file when it is done, so files do not pile up. A lock therefore counts only if its path
still names the locked file; otherwise the file was removed in between, and the attempt fails.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def try_lock_file(path: Path) -> Iterator[bool]:
    """Try to lock the file, creating it if needed, without waiting; yield True if locked. The lock is held in the
    block; its file is removed at the end."""
    descriptor = _try(path, fcntl.LOCK_EX, os.O_RDWR | os.O_CREAT)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            path.unlink(missing_ok=True)  # unlinked while locked: processes that wait for it create a new one
            os.close(descriptor)


@contextmanager
def try_lock_directory(path: Path, *, shared: bool = False) -> Iterator[bool]:
    """Try to lock the directory, without waiting; yield True if it exists and is locked. The lock, with `shared` one
    that others may share, is held in the block."""
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
    """Return a descriptor that holds the lock of `path`, or None if another process holds it or the path was removed
    meanwhile. Raise OSError if it cannot be opened."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):  # locked by another process, or removed meanwhile
        os.close(descriptor)
        return None
    os.close(descriptor)
    return None
