"""Limits of one tenant on shared resources of this gateway, in addition to its quota.

    TenantShares   an amount at a time; more is    bytes of bodies on their way; uploads, listings, lines of batches and
                   rejected                        the bytes that these hold
    TenantSlots    a number at a time; others      conversations that are read, batches that are made, calls and threads
                   wait in order of arrival        of server tools
    Lookups        a rate                          models, rollouts, files, batches, conversations: what no
                                                   engine answers

They are three because they end differently: a share is rejected immediately, a slot is waited for, and a lookup is
possible again later. Each raises its owner's error message. Only tenants that hold or wait for something are
remembered. Each is owned by one event loop.

A lookup is in no quota, but uses the event loop or a thread of the store. So each tenant has a token bucket, large
enough for many clients that list models as they start, and too small for a flood:

    capacity = per_minute / 6 (a burst of ten seconds' calls)     refill = per_minute / 60 a second
    worked example (test_a_flood_of_lookups_is_refused): 6,000 a minute: a burst of 1,000, then 100 a second
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from functions.api.ids import TenantId
from functions.decisions.quota.token_bucket import US_PER_S, TokenBucket
from functions.gateway.errors import ErrorAnswer, RequestRejected

_PERIOD_S = 60
_BURST_DIVISOR = 6
_ADVICE = {
    "models": "The description of a model changes at most once a second.",
    "files": "Files never change.",
    "batches": "The description of a batch changes at most every five seconds.",
}
_SWEPT_AT = 1000  # number of buckets at which unused ones are dropped: a full bucket carries no information


class TenantShares:
    """Shares of an amount: at most `most` in all, and at most `most_per_tenant` for one tenant.

    The owner checks `is_free` before `reserve`; with a `refusal`, `reserved` checks it and raises.
    """

    __slots__ = ("_held", "_most_per_tenant", "_refusal", "held", "most")

    def __init__(
        self,
        most: int = sys.maxsize,
        most_per_tenant: int = sys.maxsize,
        refusal: Callable[[], RequestRejected] | None = None,
    ) -> None:
        self._most_per_tenant = most_per_tenant
        self._refusal = refusal
        self._held: Counter[str] = Counter()
        self.most = most
        self.held = 0  # by all tenants

    def held_by(self, tenant: str) -> int:
        return self._held[tenant]

    def is_free(self, tenant: str, amount: int = 1, own_most: int = sys.maxsize) -> bool:
        """Return True if `amount` more fits the limits of all and of the tenant, which `own_most` may lower."""
        own = self._held[tenant] + amount
        return self.held + amount <= self.most and own <= min(self._most_per_tenant, own_most)

    def reserve(self, tenant: str, amount: int = 1) -> None:
        self._held[tenant] += amount
        self.held += amount

    def release(self, tenant: str, amount: int = 1) -> None:
        self.held -= amount
        self._held[tenant] -= amount
        if not self._held[tenant]:
            del self._held[tenant]

    @contextmanager
    def reserved(self, tenant: str, amount: int = 1) -> Iterator[None]:
        if self._refusal is not None and not self.is_free(tenant, amount):
            raise self._refusal()
        self.reserve(tenant, amount)
        try:
            yield
        finally:
            self.release(tenant, amount)

    def __len__(self) -> int:
        return len(self._held)


class TenantSlots:
    """Slots of a tenant: at most `most` in use; further callers wait in order of arrival."""

    def __init__(
        self,
        most: int,
        *,
        wait_s: float | None = None,
        most_users: int | None = None,
        refusal: Callable[[], RequestRejected] | None = None,
    ) -> None:
        """`refusal` is raised after a wait of `wait_s`, or if `most_users` of a tenant hold or wait for a slot."""
        self._most = most
        self._wait_s = wait_s
        self._most_users = most_users
        self._refusal = refusal
        self._tenants: dict[str, _Slots] = {}

    async def enter(self, tenant: str) -> None:
        """Wait for a slot of the tenant and acquire it; `leave` releases it. Raises `refusal` as `__init__` says."""
        slots = self._tenants.setdefault(tenant, _Slots(self._most))
        if self._refusal is not None and slots.users == self._most_users:
            raise self._refusal()
        slots.users += 1
        try:
            async with asyncio.timeout(self._wait_s):
                await slots.free.acquire()
        except BaseException as error:
            self._forget(tenant, slots)
            if isinstance(error, TimeoutError) and self._refusal is not None:
                raise self._refusal() from error
            raise

    def leave(self, tenant: str) -> None:
        slots = self._tenants[tenant]
        slots.free.release()
        self._forget(tenant, slots)

    @asynccontextmanager
    async def reserved(self, tenant: str) -> AsyncIterator[None]:
        await self.enter(tenant)
        try:
            yield
        finally:
            self.leave(tenant)

    def _forget(self, tenant: str, slots: "_Slots") -> None:
        slots.users -= 1
        if not slots.users:
            del self._tenants[tenant]

    def __len__(self) -> int:
        return len(self._tenants)


class _Slots:
    __slots__ = ("free", "users")

    def __init__(self, most: int) -> None:
        self.free = asyncio.Semaphore(most)
        self.users = 0


class Lookups:
    """Rate limit of calls that no engine answers. Owned by one event loop."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: dict[TenantId, TokenBucket] = {}

    def count(self, tenant: TenantId, what: str) -> None:
        """Count one call of this tenant. A call over the limit raises RequestRejected (429) and does not count."""
        now_us = int(self._clock() * US_PER_S)
        bucket = self._buckets.get(tenant)
        if bucket is None:
            bucket = self._buckets[tenant] = self._new(now_us)
        bucket.advance(now_us)
        wait_us = bucket.wait_us(bucket.unit)
        if wait_us:
            message = (
                f"Too many calls for {what}: calls for models, rollouts, files, batches and conversations together are "
                f"limited to {self._per_minute} a minute at this gateway. Call less often. {_ADVICE.get(what, '')}"
            )
            raise RequestRejected(
                ErrorAnswer(429, "requests", "too_many_lookups", message, retry_after_s=-(-wait_us // US_PER_S))
            )
        bucket.add(bucket.unit)

    def _new(self, now_us: int) -> TokenBucket:
        if len(self._buckets) >= _SWEPT_AT:
            for bucket in self._buckets.values():
                bucket.advance(now_us)
            self._buckets = {tenant: bucket for tenant, bucket in self._buckets.items() if bucket.level}
        return TokenBucket(self._per_minute, max(1, self._per_minute // _BURST_DIVISOR), _PERIOD_S, now_us)

    def __len__(self) -> int:
        return len(self._buckets)
