"""How often a tenant may ask this gateway for what no engine answers: models, files and batches.

Such a call is in no quota, and yet takes the loop or a thread of the store's. So each tenant has a bucket for them at
each gateway, wide enough for many clients that list models as they start, and too narrow for a flood:

    capacity = per_minute / 6 (ten seconds' worth may come at once)     refill = per_minute / 60 a second
    worked example (test_a_flood_of_lookups_is_refused): 6,000 a minute: 1,000 at once, then 100 a second

Neighbours: `callers` counts here; `decisions.quota.token_bucket` is the arithmetic.
"""

from collections.abc import Callable

from functions.api.ids import TenantId
from functions.decisions.quota.token_bucket import US_PER_S, TokenBucket
from functions.gateway.errors import ErrorAnswer, Refused

_PERIOD_S = 60
_BURST_DIVISOR = 6
_ADVICE = {
    "models": "What is said of a model changes once a second at most.",
    "files": "A file is what it was.",
    "batches": "What is said of a batch changes every five seconds at most.",
}
_SWEPT_AT = 1000  # buckets; those that are full again are as good as none


class Lookups:
    """Owned by one event loop."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: dict[TenantId, TokenBucket] = {}

    def count(self, tenant: TenantId, what: str) -> None:
        """One more of this tenant's; raises Refused (429), and then it does not count. `what`: models or the like."""
        now_us = int(self._clock() * US_PER_S)
        bucket = self._buckets.get(tenant)
        if bucket is None:
            bucket = self._buckets[tenant] = self._new(now_us)
        bucket.advance(now_us)
        wait_us = bucket.wait_us(bucket.grain)
        if wait_us:
            message = (
                f"You ask for {what} too often: models, files and batches together may be asked for "
                f"{self._per_minute} times a minute here. Ask less often. {_ADVICE.get(what, '')}"
            )
            raise Refused(
                ErrorAnswer(429, "requests", "too_many_lookups", message, retry_after_s=-(-wait_us // US_PER_S))
            )
        bucket.add(bucket.grain)

    def _new(self, now_us: int) -> TokenBucket:
        if len(self._buckets) >= _SWEPT_AT:
            for bucket in self._buckets.values():
                bucket.advance(now_us)
            self._buckets = {tenant: bucket for tenant, bucket in self._buckets.items() if bucket.level}
        return TokenBucket(self._per_minute, max(1, self._per_minute // _BURST_DIVISOR), _PERIOD_S, now_us)

    def __len__(self) -> int:
        return len(self._buckets)
