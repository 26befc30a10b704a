"""Memory of a process where everything that its settings bound is full at once, against what it may have.

Each role sums up its own (`gateway.memory`, and `most_memory` in the servers of the others); the manifests' limits are
held to the same sums, and a process that starts with less than that says so: past its limit it is killed, with all that
it serves.
"""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

MIB = 1024 * 1024
_LIMIT_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_NO_LIMIT_BYTES = 2**60  # what cgroups of the first version say where there is none
SNAPSHOT_FACTOR = 3  # 31 MiB of 60,000 models are 93 MiB, decoded

_log = logging.getLogger(__name__)


class Part(NamedTuple):
    what: str
    most_bytes: int


def total_bytes(parts: Iterable[Part]) -> int:
    return sum(part.most_bytes for part in parts)


def limit_bytes(files: Iterable[Path] = _LIMIT_FILES) -> int | None:
    """Of the process's control group; None where there is none, or it cannot be read."""
    for file in files:
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < _NO_LIMIT_BYTES:
            return int(text)
    return None


def warn_if_over(parts: Iterable[Part], limit: int | None) -> None:
    """Say at the start what the settings may come to, where that is more than there is."""
    known = sorted(parts, key=lambda part: -part.most_bytes)
    most = total_bytes(known)
    if limit is not None and most > limit:
        largest = ", ".join(f"{part.what} {part.most_bytes // MIB}" for part in known[:4])
        _log.warning(
            "by its settings this process may need %d MiB and has %d: it may be killed. Raise the limit, or lower what "
            "is largest (MiB): %s",
            most // MIB, limit // MIB, largest,
        )  # fmt: skip
