"""How much of the registry one tenant may have: so many requests open at a time, so many a second on average.

Each tenant has a moment up to which its requests are spoken for. A request moves it on by 1/rate, from now where it
lies in the past; one that would move it further than burst/rate beyond now is refused:

    due = max(due, now) + 1 / rate        refused while due - now > burst / rate

Worked example (test_a_burst_passes_and_then_the_rate_holds): with 2 a second and a burst of 3, three pass at once, the
fourth is told to come back, and half a second later one passes.
"""

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from functions.api.ids import TenantId
from functions.registry.errors import ApiError

DEFAULT_AT_ONCE = 32
DEFAULT_PER_S = 20.0
DEFAULT_BURST = 600
_SWEPT_AT = 1024  # tenants remembered before those whose time has passed are forgotten


@dataclass(slots=True)
class Turnstile:
    """Owned by one event loop."""

    at_once: int = DEFAULT_AT_ONCE
    per_s: float = DEFAULT_PER_S
    burst: int = DEFAULT_BURST
    clock: Callable[[], float] = time.monotonic
    _open: Counter[TenantId] = field(default_factory=Counter)
    _due_s: dict[TenantId, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def passing(self, tenant: TenantId | None) -> Iterator[None]:
        """One request of the tenant, until it is answered; 429 where it has too many. The operator always passes."""
        if tenant is None:
            yield
            return
        if self._open[tenant] >= self.at_once:
            raise _refused(
                f"{self.at_once} requests of yours are open, which is the limit: wait for an answer first", 1
            )
        self._take(tenant)
        self._open[tenant] += 1
        try:
            yield
        finally:
            self._open[tenant] -= 1
            if not self._open[tenant]:
                del self._open[tenant]

    def _take(self, tenant: TenantId) -> None:
        now_s = self.clock()
        due_s = max(self._due_s.get(tenant, now_s), now_s) + 1 / self.per_s
        wait_s = due_s - now_s - self.burst / self.per_s
        if wait_s > 1e-9:
            raise _refused(f"more than {self.per_s:g} requests a second of yours: slow down", max(1, math.ceil(wait_s)))
        if len(self._due_s) >= _SWEPT_AT:
            self._due_s = {name: known_s for name, known_s in self._due_s.items() if known_s > now_s}
        self._due_s[tenant] = due_s


def _refused(message: str, retry_after_s: int) -> ApiError:
    return ApiError(429, "too_many_requests", message, headers={"retry-after": str(retry_after_s)})
