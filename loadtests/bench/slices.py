"""How long a thread computes between two breaths, in CPU time: what a loop beside it waits at most.

Unlike a gap on the clock, it does not grow because the machine is busy with something else.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Slices:
    """Give `breathe` to long work, then read `longest_ms`."""

    longest_ms: float = 0.0
    total_ms: float = 0.0
    _since_s: float = field(default_factory=time.thread_time)

    def breathe(self) -> None:
        now_s = time.thread_time()
        self.longest_ms = max(self.longest_ms, (now_s - self._since_s) * 1000)
        self.total_ms += (now_s - self._since_s) * 1000
        self._since_s = time.thread_time()


def measured(work: Callable[[Callable[[], None]], object]) -> str:
    slices = Slices()
    result = work(slices.breathe)
    slices.breathe()
    del result  # freeing it is not part of the work
    return f"{slices.total_ms:,.1f} ms of CPU, longest slice {slices.longest_ms:.2f} ms"
