"""The private place where an ingest is received: one directory an ingest, gone when it ends, however it ends.

A directory is locked (flock) by the process that fills it; a lock that nobody holds marks what a killed process left,
and `clean` removes it. The directory is 0700: nobody else reads what is not yet checked.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from functions.artifacts.errors import CacheFailed

_PREFIX = ".ingest-"
_LOCK_TRIES = 5


@contextmanager
def staging(root: Path) -> Iterator[Path]:
    """A fresh empty directory below `root`."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        path, lock = _locked_directory(root)
    except OSError as error:
        raise CacheFailed(f"the staging directory {root.name} cannot be written: {error.strerror}") from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def clean(root: Path) -> int:
    """Remove what killed ingests left; how many there were."""
    removed = 0
    for path in root.glob(_PREFIX + "*"):
        with suppress(OSError):  # held by a living process, or removed by another cleaner
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
                removed += 1
            finally:
                os.close(descriptor)
    return removed


def _locked_directory(root: Path) -> tuple[Path, int]:
    """A new directory and the descriptor that holds its lock; a cleaner may win the moment between the two."""
    for _ in range(_LOCK_TRIES):
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists():
                return path, descriptor
            os.close(descriptor)
    raise CacheFailed(f"{root.name}: another process removes what is being received")
