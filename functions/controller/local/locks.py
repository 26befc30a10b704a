"""File locks: held by an open descriptor, so that the kernel lets go when the last process that has it dies."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class LockTaken(Exception):
    """Another process holds the lock."""


@contextmanager
def lock_held(path: Path) -> Iterator[int]:
    """Hold the lock or raise LockTaken at once; its descriptor is given out for children to inherit."""
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
