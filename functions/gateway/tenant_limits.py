"""Limits of one tenant on what all share at this gateway, beside its quota.

    TenantShares   so much at a time, else none    bytes of bodies on their way; uploads, listings, lines of batches and
                                                   the bytes that these hold
    TenantSlots    so many at a time, the others   conversations that are read, batches that are made, calls and threads
                   wait in their order             of server tools
    Lookups        so often                        models, rollouts, files, batches, conversations: what no
                                                   engine answers

These are three because they end differently: a share is refused at once, a slot is waited for, a lookup comes back with
time. Each refuses in its owner's words. Only tenants that hold something, or wait for it, are remembered. Each is owned
by one event loop.

A lookup is in no quota, and yet takes the loop or a thread of the store's. So each tenant has a bucket for them, wide
enough for many clients that list models as they start, and too narrow for a flood:

    capacity = per_minute / 6 (ten seconds' worth may come at once)     refill = per_minute / 60 a second
    worked example (test_a_flood_of_lookups_is_refused): 6,000 a minute: 1,000 at once, then 100 a second
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

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


class TenantShares:
    """At most `most` are held in all, and `most_per_tenant` by one tenant.

    Its owner asks `is_free` before it takes; with a `refusal`, `taken` does.
    """

    __slots__ = ("_held", "_most_per_tenant", "_refusal", "held", "most")

    def __init__(
        self, most: int = sys.maxsize, most_per_tenant: int = sys.maxsize, refusal: Callable[[], Refused] | None = None
    ) -> None:
        self._most_per_tenant = most_per_tenant
        self._refusal = refusal
        self._held: Counter[str] = Counter()
        self.most = most
        self.held = 0  # by all

    def held_by(self, tenant: str) -> int:
        return self._held[tenant]

    def is_free(self, tenant: str, amount: int = 1, own_most: int = sys.maxsize) -> bool:
        """`own_most`: a narrower bound for this tenant."""
        own = self._held[tenant] + amount
        return self.held + amount <= self.most and own <= min(self._most_per_tenant, own_most)

    def take(self, tenant: str, amount: int = 1) -> None:
        self._held[tenant] += amount
        self.held += amount

    def give_back(self, tenant: str, amount: int = 1) -> None:
        self.held -= amount
        self._held[tenant] -= amount
        if not self._held[tenant]:
            del self._held[tenant]

    @contextmanager
    def taken(self, tenant: str, amount: int = 1) -> Iterator[None]:
        if self._refusal is not None and not self.is_free(tenant, amount):
            raise self._refusal()
        self.take(tenant, amount)
        try:
            yield
        finally:
            self.give_back(tenant, amount)

    def __len__(self) -> int:
        return len(self._held)


class TenantSlots:
    """`most` of a tenant's at a time; who comes then waits, in the order of coming."""

    def __init__(
        self,
        most: int,
        *,
        wait_s: float | None = None,
        most_users: int | None = None,
        refusal: Callable[[], Refused] | None = None,
    ) -> None:
        """`refusal` is raised where a tenant has `most_users` already (those that wait included), or after `wait_s`."""
        self._most = most
        self._wait_s = wait_s
        self._most_users = most_users
        self._refusal = refusal
        self._tenants: dict[str, _Slots] = {}

    async def enter(self, tenant: str) -> None:
        """Take a slot, which `leave` gives back."""
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
    async def taken(self, tenant: str) -> AsyncIterator[None]:
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
    """One tenant's."""

    __slots__ = ("free", "users")

    def __init__(self, most: int) -> None:
        self.free = asyncio.Semaphore(most)
        self.users = 0


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
        wait_us = bucket.wait_us(bucket.unit)
        if wait_us:
            message = (
                f"You ask for {what} too often: models, rollouts, files, batches and conversations together may be "
                f"asked for {self._per_minute} times a minute here. Ask less often. {_ADVICE.get(what, '')}"
            )
            raise Refused(
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
