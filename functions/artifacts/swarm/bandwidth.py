"""Bytes a second, as a token bucket that threads and tasks of one process share.

    wait = max(0, start - now),  start = max(previous start + bytes / rate, now - burst)

Whoever is about to take `size_bytes` reserves them and waits that long; the bucket never sleeps itself. Worked example
(test_worked_example): 1,000 bytes/s, 100 bytes of burst: of two reservations of 500 bytes at once, the first waits
0.4 s, the second 0.9 s; in any t seconds at most 1,000 * t + 100 bytes go through. No rate: no waiting.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

_BURST_S = 0.1  # what an idle moment may be caught up with


@dataclass(slots=True)
class Bandwidth:
    bytes_per_s: float | None = None
    clock: Callable[[], float] = time.monotonic
    burst_s: float = _BURST_S
    _free_at_s: float = float("-inf")  # when all that is reserved has gone through
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reserve(self, size_bytes: int) -> float:
        """Seconds to wait before these bytes have gone through."""
        if self.bytes_per_s is None:
            return 0.0
        now_s = self.clock()
        with self._lock:
            self._free_at_s = max(self._free_at_s, now_s - self.burst_s) + size_bytes / self.bytes_per_s
            return max(0.0, self._free_at_s - now_s)
