"""CPU time that a thread computes between two yields: an upper bound of the wait of an event loop in another thread.

Unlike a gap of wall time, it does not grow when the machine is busy with other work.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Slices:
    """Slices of CPU time between two calls of `breathe`, which is passed to long work as its yield function."""

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
