"""What one tenant has under way and has asked for lately, and whether one more request may come.

The state outlives snapshots: a limit that a push changes holds for the next request, and what was under way before
counts against it. What is under way is counted for every tenant, limited or not, for the same reason.

Neighbours: `request_rate` is the bucket; the gateway's `quotas.py` keeps one of these per tenant and answers 429.
"""

from dataclasses import dataclass, field
from typing import Literal

from functions.api.snapshot import QuotaLimits
from functions.decisions.request_rate import RequestRate

_FREES_UP_S = 1.0  # when one of a tenant's own requests ends is its own doing: a second is as good a guess as any


@dataclass(frozen=True, slots=True)
class OverLimit:
    """One more would be too many."""

    dimension: Literal["concurrent_requests", "requests_per_minute"]
    limit: int
    retry_after_s: float


@dataclass(slots=True)
class TenantUse:
    in_flight: int = 0
    rate: RequestRate = field(default_factory=RequestRate)

    def enter(self, limits: QuotaLimits, now_s: float) -> OverLimit | None:
        """Count one more request, or say why not; what was refused counts nowhere."""
        concurrent, per_minute = limits.concurrent_requests, limits.requests_per_minute
        if concurrent is not None and self.in_flight >= concurrent:
            return OverLimit("concurrent_requests", concurrent, _FREES_UP_S)
        if per_minute is not None:
            wait_s = self.rate.try_take(per_minute, now_s)
            if wait_s > 0.0:
                return OverLimit("requests_per_minute", per_minute, wait_s)
        self.in_flight += 1
        return None

    def leave(self) -> None:
        """A request that entered has ended, however it ended."""
        if self.in_flight <= 0:
            raise ValueError("more requests ended than began")
        self.in_flight -= 1

    def is_idle(self, now_s: float) -> bool:
        """Whether forgetting this would change no decision."""
        return self.in_flight == 0 and self.rate.is_idle(now_s)
