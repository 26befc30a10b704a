"""Memory that a process may need if everything that its settings bound is full at once, compared with its limit.

Each role adds up its own parts (`gateway.memory`, and `most_memory` in the servers of the others), and tests
compare the manifests' limits with the same sums. A process with a lower limit logs a warning at its start, because
exceeding the limit kills it with everything it serves.
"""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

MIB = 1024 * 1024
_LIMIT_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_NO_LIMIT_BYTES = 2**60  # cgroup v1 reports a value above this if there is no limit
SNAPSHOT_FACTOR = 3  # 31 MiB of 60,000 models are 93 MiB when decoded

_log = logging.getLogger(__name__)


class Part(NamedTuple):
    what: str
    most_bytes: int


def total_bytes(parts: Iterable[Part]) -> int:
    return sum(part.most_bytes for part in parts)


def limit_bytes(files: Iterable[Path] = _LIMIT_FILES) -> int | None:
    """Return the memory limit of the process's control group; None if there is none, or it cannot be read."""
    for file in files:
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < _NO_LIMIT_BYTES:
            return int(text)
    return None


def warn_if_over(parts: Iterable[Part], limit: int | None) -> None:
    """Log a warning if the settings may need more than the memory limit in bytes; None means that there is no limit."""
    known = sorted(parts, key=lambda part: -part.most_bytes)
    most = total_bytes(known)
    if limit is not None and most > limit:
        largest = ", ".join(f"{part.what} {part.most_bytes // MIB}" for part in known[:4])
        _log.warning(
            "with its settings this process may need %d MiB, but its memory limit is %d MiB: it may be killed. Raise "
            "the limit, or lower the largest parts (MiB): %s",
            most // MIB, limit // MIB, largest,
        )  # fmt: skip
