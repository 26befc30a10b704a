"""Waits for the first replica of a pool that is at zero: bounded in requests, bytes and time.

Only pools whose AutoscalingPolicy has a min of 0 are waited for, and only by requests that were admitted: with a valid
key, access to the model and limits left. So nobody else can have anything started. Each request, also one that is
turned away because it cannot be in time, makes the pool wanted for `ASKED_FOR_S`; the autoscaler is told at once
(`asked`), then each second (`functions.fleet.pool_heartbeat`), and starts one replica, however many wait.

    in time      expected = the longest of the last three waits that this gateway has seen to their end, from the first
                 request to the first ready replica; while there is none, what the last replica said of its own start
    too late     what is left of that is more than the request may wait: it is refused at once, with `retry-after`
    not known    it waits for as long as it may

A request holds no slot of its pool's admission queue while it waits; it is submitted anew when the pool serves, so that
all who waited are dispatched as the first replica has room for them.

Neighbours: `exchange` begins, leaves and is notified; `decisions.autoscaling.zero` decides to start.
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

ASKED_FOR_S = 15.0  # after the last request: it outlives a heartbeat that is lost, and a registry that starts again
TELL_AFTER_S = 5.0  # a stream's client hears that it waits, and then
TELL_EVERY_S = 10.0  # this often: proxies cut connections on which nothing comes for a minute
_KEPT_WAITS = 3
_MARGIN_S = 0.5  # before a request's own deadline: the answer says why, and when to come back

Refusal = Literal["too_late", "too_many", "not_started"]


@dataclass(frozen=True, slots=True)
class NotAwake:
    """Why a request does not wait, or no longer."""

    why: Refusal
    after_s: float | None  # until the pool should serve; None: not known


class Waiter(Protocol):
    """An exchange."""

    def pool_serves(self) -> None: ...

    def pool_does_not_serve(self, refused: NotAwake) -> None: ...

    def pool_is_starting(self, expected_s: float | None) -> None:
        """Still; for a client that streams."""


@dataclass(slots=True)
class WakeSlot:
    """One request's."""

    pool: PoolName
    tenant: TenantId
    size_bytes: int
    since_s: float
    until_s: float
    tell_s: float


@dataclass(slots=True)
class _Pool:
    asked_s: float  # the first request since it last served
    last_s: float  # the last one
    waiters: dict[Waiter, WakeSlot] = field(default_factory=dict)  # in the order in which they came


class PoolWakes:
    """Owned by one event loop. Times are monotonic seconds."""

    def __init__(self, clock: Callable[[], float], fleet: FleetView, limits: Limits) -> None:
        self._clock = clock
        self._fleet = fleet
        self._limits = limits
        self._pools: dict[PoolName, _Pool] = {}  # asked for, and without a replica
        self._waits_s: dict[PoolName, deque[float]] = {}
        self._started_s: dict[PoolName, float] = {}  # as a replica said of its own start
        self._held_bytes = 0
        self._by_tenant: dict[TenantId, int] = {}
        self.waiting = 0
        self.asked = asyncio.Event()  # set when a pool is asked for that was not

    def ask(self, catalogue: Catalogue, pool: PoolName) -> bool:
        """A request has found no replica: the pool is wanted, if it is one of those that may be at zero. Whether it
        is."""
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
        self, waiter: Waiter, pool: PoolName, tenant: TenantId, size_bytes: int, deadline_s: float
    ) -> NotAwake | None:
        """For its first replica, asked for before; or why not. `deadline_s`: of the request."""
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

    def leave(self, waiter: Waiter, pool: PoolName) -> None:
        """It waits no more; does nothing where it did not."""
        known = self._pools.get(pool)
        place = known.waiters.pop(waiter, None) if known is not None else None
        if place is not None:
            self._left(place)

    def sweep(self, now_s: float) -> None:
        """A few times a second: whose pool serves, and whose time is over."""
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
        """Until it should serve, at least one second; None: not known."""
        known, expected_s = self._pools.get(pool), self.expected_s(pool)
        if expected_s is None or known is None:
            return expected_s
        return max(1.0, known.asked_s + expected_s - self._clock())

    def expected_s(self, pool: PoolName) -> float | None:
        """From a first request to a first replica."""
        seen = self._waits_s.get(pool)
        return max(seen) if seen else self._started_s.get(pool)

    def replica_started(self, pool: PoolName, took_s: float) -> None:
        """A replica's heartbeat says so of itself."""
        if pool in self._started_s or len(self._started_s) < MAX_DEMAND:
            self._started_s[pool] = took_s

    def demand(self, may_sleep: frozenset[PoolName], open_requests: Mapping[PoolName, int]) -> tuple[PoolDemand, ...]:
        """For the autoscaler, of the pools that may be at zero and somebody wants; those that wait come first."""
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
        """Another snapshot: what is known of pools that are gone is forgotten."""
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


def told_s(seconds: float) -> int:
    """For people and for `retry-after`."""
    return max(1, ceil(seconds))
