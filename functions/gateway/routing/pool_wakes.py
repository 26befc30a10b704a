"""Waits for the first replica of a pool that is at zero, with limits on requests, bytes and time.

Requests wait only for pools whose AutoscalingPolicy has a min of 0, and only after admission: with a valid key,
access to the model and quota left. Other requests cannot start anything. Each request makes the pool wanted for
`ASKED_FOR_S`, even one that is rejected because the pool cannot start in time. The autoscaler is notified immediately
(`asked`) and then each second (`functions.fleet.pool_heartbeat`). It starts one replica for any number of waiting
requests.

    in time      expected time = the longest of the last three waits that ended here, from the first request to the
                 first ready replica; before the first such wait, the start time that the last replica reported
    too late     the rest of that time exceeds what the request may wait: it is rejected at once, with `retry-after`
    unknown      the request waits for as long as it may

A waiting request holds no slot of its pool's admission queue. It is submitted again when the pool serves, so that the
first replica gets only as many requests as it has capacity for.

`exchange` starts and leaves a wait and is notified; `decisions.autoscaling.zero` decides to start a replica.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Literal, Protocol

from functions.api.ids import PoolName, TenantId
from functions.decisions.catalogue import Catalogue
from functions.fleet.pool_heartbeat import MAX_DEMAND, PoolDemand
from functions.fleet.view import FleetView
from functions.gateway.limits import Limits

ASKED_FOR_S = 15.0  # after the last request; longer than a lost heartbeat or a restart of the registry
TELL_AFTER_S = 5.0  # delay of the first comment to a streaming client
TELL_EVERY_S = 10.0  # interval of further comments: proxies cut connections that are silent for a minute
_KEPT_WAITS = 3
_MARGIN_S = 0.5  # before the request's own deadline, so that the error with reason and retry time still arrives

Refusal = Literal["too_late", "too_many", "not_started"]


@dataclass(frozen=True, slots=True)
class NotAwake:
    """Reason why a request does not wait, or no longer waits."""

    why: Refusal
    after_s: float | None  # seconds until the pool should serve; None: unknown


class WakeWaiter(Protocol):
    """A request that waits for a pool (an exchange)."""

    def pool_serves(self) -> None: ...

    def pool_does_not_serve(self, refused: NotAwake) -> None: ...

    def pool_is_starting(self, expected_s: float | None) -> None:
        """Send a streaming client a comment that its pool is still starting, for another `expected_s` if known."""


@dataclass(slots=True)
class WakeSlot:
    """Place of one waiting request."""

    pool: PoolName
    tenant: TenantId
    size_bytes: int
    since_s: float
    until_s: float
    tell_s: float


@dataclass(slots=True)
class _Pool:
    asked_s: float  # time of the first request since the pool last served
    last_s: float  # time of the last request
    waiters: dict[WakeWaiter, WakeSlot] = field(default_factory=dict)  # in order of arrival


class PoolWakes:
    """Pools at zero and the requests that wait for them. Owned by one event loop; times are monotonic seconds."""

    def __init__(self, clock: Callable[[], float], fleet: FleetView, limits: Limits) -> None:
        self._clock = clock
        self._fleet = fleet
        self._limits = limits
        self._pools: dict[PoolName, _Pool] = {}  # requested pools without a replica
        self._waits_s: dict[PoolName, deque[float]] = {}
        self._started_s: dict[PoolName, float] = {}  # start time that a replica reported
        self._held_bytes = 0
        self._by_tenant: dict[TenantId, int] = {}
        self.waiting = 0
        self.asked = asyncio.Event()  # set when a pool becomes wanted

    def request_pool(self, catalogue: Catalogue, pool: PoolName) -> bool:
        """Record that a request needs the pool, and return True; return False if the pool cannot scale to zero."""
        if pool not in catalogue.may_sleep:
            return False
        now_s, known = self._clock(), self._pools.get(pool)
        if known is None:
            self._pools[pool] = _Pool(now_s, now_s)
            self.asked.set()
        else:
            if not self._waking(pool, now_s):
                self.asked.set()
            known.last_s = now_s
        return True

    def wait(
        self, waiter: WakeWaiter, pool: PoolName, tenant: TenantId, size_bytes: int, deadline_s: float
    ) -> NotAwake | None:
        """Add a waiter for the first replica of a requested pool and return None, or return why it cannot wait.

        `deadline_s` is the request's deadline.
        """
        now_s, limits = self._clock(), self._limits
        left_s = self.left_s(pool)
        until_s = min(now_s + limits.wake_wait_s, deadline_s - _MARGIN_S)
        if left_s is not None and now_s + left_s > until_s:
            return NotAwake("too_late", left_s)
        mine, half = self._by_tenant.get(tenant, 0), max(1, limits.wake_waiting // 2)
        is_full = self.waiting >= limits.wake_waiting or mine >= half
        if is_full or self._held_bytes + size_bytes > limits.wake_waiting_bytes:
            return NotAwake("too_many", left_s)
        self._pools[pool].waiters[waiter] = WakeSlot(pool, tenant, size_bytes, now_s, until_s, now_s + TELL_AFTER_S)
        self._by_tenant[tenant] = mine + 1
        self._held_bytes += size_bytes
        self.waiting += 1
        return None

    def leave(self, waiter: WakeWaiter, pool: PoolName) -> None:
        """Remove the waiter. Does nothing if it does not wait."""
        known = self._pools.get(pool)
        place = known.waiters.pop(waiter, None) if known is not None else None
        if place is not None:
            self._left(place)

    def sweep(self, now_s: float) -> None:
        """End the waits for pools that now serve and those that timed out; notify other waiters of the progress.

        Forget pools that are not needed any more. Called a few times a second.
        """
        for pool, known in list(self._pools.items()):
            if self._fleet.index(pool).ready:
                self._serves(pool, known, now_s)
                continue
            for waiter, place in list(known.waiters.items()):
                if now_s >= place.until_s:
                    self.leave(waiter, pool)
                    waiter.pool_does_not_serve(NotAwake("not_started", self.left_s(pool)))
                elif now_s >= place.tell_s:
                    place.tell_s = now_s + TELL_EVERY_S
                    waiter.pool_is_starting(self.left_s(pool))
            if not known.waiters and now_s - known.last_s > max(ASKED_FOR_S, self._limits.wake_wait_s):
                del self._pools[pool]

    def left_s(self, pool: PoolName) -> float | None:
        """Return the seconds until the pool should serve, at least one, or None if unknown."""
        known, expected_s = self._pools.get(pool), self.expected_s(pool)
        if expected_s is None or known is None:
            return expected_s
        return max(1.0, known.asked_s + expected_s - self._clock())

    def expected_s(self, pool: PoolName) -> float | None:
        """Return the expected seconds from the first request to the first replica, or None if unknown."""
        seen = self._waits_s.get(pool)
        return max(seen) if seen else self._started_s.get(pool)

    def replica_started(self, pool: PoolName, took_s: float) -> None:
        """Record the seconds that a replica's start took, as its heartbeat reports; for at most MAX_DEMAND pools."""
        if pool in self._started_s or len(self._started_s) < MAX_DEMAND:
            self._started_s[pool] = took_s

    def demand(self, may_sleep: frozenset[PoolName], open_requests: Mapping[PoolName, int]) -> tuple[PoolDemand, ...]:
        """Return the wanted pools that may be at zero, for the autoscaler. Pools with waiting requests come first."""
        now_s = self._clock()
        told = [
            PoolDemand(pool, self._waking(pool, now_s), open_requests.get(pool, 0))
            for pool in sorted(may_sleep)
            if pool in self._pools or open_requests.get(pool)
        ]
        return tuple(sorted(told, key=lambda each: not each.waking)[:MAX_DEMAND])

    def _waking(self, pool: PoolName, now_s: float) -> int:
        known = self._pools.get(pool)
        if known is None:
            return 0
        return len(known.waiters) or int(now_s - known.last_s <= ASKED_FOR_S)

    def keep_only(self, may_sleep: frozenset[PoolName]) -> None:
        """Apply a new snapshot: forget the start times of pools that cannot scale to zero or are gone."""
        for known in (self._waits_s, self._started_s):
            for pool in known.keys() - may_sleep:
                del known[pool]

    def _serves(self, pool: PoolName, known: _Pool, now_s: float) -> None:
        del self._pools[pool]
        self._waits_s.setdefault(pool, deque(maxlen=_KEPT_WAITS)).append(now_s - known.asked_s)
        for waiter, place in known.waiters.items():
            self._left(place)
            asyncio.get_running_loop().call_soon(waiter.pool_serves)

    def _left(self, place: WakeSlot) -> None:
        self.waiting -= 1
        self._held_bytes -= place.size_bytes
        self._by_tenant[place.tenant] -= 1
        if not self._by_tenant[place.tenant]:
            del self._by_tenant[place.tenant]


def whole_seconds(seconds: float) -> int:
    """Return the seconds rounded up, at least 1, for messages and for `retry-after`."""
    return max(1, ceil(seconds))
