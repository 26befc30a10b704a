"""Let the process run out of file descriptors during a test."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def no_descriptors(*, left: int) -> Iterator[None]:
    """Allow at most `left` more open files; open files stay open.

    The limit applies to descriptor numbers, so unused numbers below the highest one are filled first.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fillers: list[int] = []
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    while not fillers or fillers[-1] <= highest:
        fillers.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 1 + left, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)
