"""Limits of each tenant at the registry: open requests at a time, and average requests per second.

The rate is a `decisions.quota.token_bucket` of requests per minute, so that rates below one per second are whole
numbers. Worked example (test_a_burst_passes_and_then_the_rate_holds): with 2 per second and a burst of 3, three
requests pass immediately, the fourth gets 429 with Retry-After, and half a second later one passes.
"""

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from functions.api.ids import TenantId
from functions.decisions.quota.token_bucket import US_PER_S, TokenBucket
from functions.registry.errors import ApiError

DEFAULT_AT_ONCE = 32
DEFAULT_PER_S = 20.0
DEFAULT_BURST = 600
_PERIOD_S = 60
_SWEPT_AT = 1024  # number of buckets above which full ones are deleted


@dataclass(slots=True)
class TenantRateLimiter:
    """Open requests and token bucket of each tenant. Owned by one event loop."""

    at_once: int = DEFAULT_AT_ONCE
    per_s: float = DEFAULT_PER_S
    burst: int = DEFAULT_BURST
    clock: Callable[[], float] = time.monotonic
    _open: Counter[TenantId] = field(default_factory=Counter)
    _buckets: dict[TenantId, TokenBucket] = field(default_factory=dict)

    @contextlib.contextmanager
    def admit_request(self, tenant: TenantId | None) -> Iterator[None]:
        """Count one request of the tenant until it ends. Raises ApiError 429 if it has too many open requests or sends
        too many a second. The operator (None) has no limit."""
        if tenant is None:
            yield
            return
        if self._open[tenant] >= self.at_once:
            raise _refused(f"you have {self.at_once} open requests, which is the limit: wait for an answer first", 1)
        self._spend(tenant)
        self._open[tenant] += 1
        try:
            yield
        finally:
            self._open[tenant] -= 1
            if not self._open[tenant]:
                del self._open[tenant]

    def _spend(self, tenant: TenantId) -> None:
        now_us = int(self.clock() * US_PER_S)
        bucket = self._buckets.get(tenant) or self._new_bucket(tenant, now_us)
        bucket.advance(now_us)
        wait_us = bucket.wait_us(bucket.unit)
        if wait_us:
            raise _refused(
                f"you send more than {self.per_s:g} requests per second, which is the limit: slow down",
                wait_us / US_PER_S,
            )
        bucket.add(bucket.unit)

    def _new_bucket(self, tenant: TenantId, now_us: int) -> TokenBucket:
        if len(self._buckets) >= _SWEPT_AT:
            for bucket in self._buckets.values():
                bucket.advance(now_us)
            self._buckets = {name: bucket for name, bucket in self._buckets.items() if bucket.level}
        per_minute = max(1, round(self.per_s * _PERIOD_S))
        bucket = self._buckets[tenant] = TokenBucket(per_minute, self.burst, _PERIOD_S, now_us)
        return bucket


def _refused(message: str, retry_after_s: float) -> ApiError:
    return ApiError(429, "too_many_requests", message, headers={"retry-after": str(max(1, math.ceil(retry_after_s)))})
