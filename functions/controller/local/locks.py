"""File locks: held by an open descriptor, so that the kernel lets go when the last process that has it dies."""

import fcntl
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


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


# One log file per process, appended to, turned over when it is large at a start.
#
# A process writes to the file that it was started with, so the bound holds from start to start: at most two files of
# about LOG_MAX_BYTES each, unless one run writes more than that.


LOG_MAX_BYTES = 20 * 1024 * 1024
_TAIL_MAX_BYTES = 64 * 1024


def open_log(path: Path) -> BinaryIO:
    """For appending; the former file is kept once, as `<name>.log.1`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_MAX_BYTES:
        path.replace(path.with_name(path.name + ".1"))
    return path.open("ab", buffering=0)


def last_lines(path: Path, count: int) -> list[str]:
    """The end of a log for people; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_MAX_BYTES))
            text = file.read(_TAIL_MAX_BYTES).decode(errors="replace")
    except OSError:
        return []
    return list(deque(text.splitlines(), maxlen=count))
