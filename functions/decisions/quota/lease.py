"""Quota leases: amounts of tenants' limits that a gateway reserves ahead of need, so that requests skip the bus.

Each round (250 ms, +-10 %) and for each limit of each account in use:

    demand = 0.3 x requested in this round + 0.7 x demand before           rejected requests count as well
    ask    = min(1.5 x demand x 2 rounds, burst / 4), at least the largest request rejected, at most the burst,
             in whole requests of the mean size
    room < ask         request ask - room             debt is part of it
    room > 2 x ask     return room - ask              hoarding starves the other gateways
    unused for 2 s     return all

The bus shares out three fourths of a burst. The last fourth is for requests that come while the bus is slow
(`shared_burst`), so that both together never exceed what the one bucket allows. Of the requests dimension the bus
shares out all. There, credit is part of what the bus had left in its last answer (`RateLease.credit`); if nothing was
left, no request is admitted on credit. The bus grants at most half of what is left for one ask, so that the first
gateway does not get all. A partial grant is in whole requests, too: fractions of requests at many gateways are of no
use (test_whole_request_limit_is_usable). If a request finds no room here, the gateway immediately asks the bus,
once, for exactly what is missing in all its limits, all or nothing. A refusal is remembered until the time that the
bus named.

All gateways together hold at most what the bus has granted, which is never more than the one bucket allows:

    outstanding <= min(burst, gateways x 2 x ask)        if a gateway dies, at most 2 x ask is lost

Worked example (test_worked_example_from_the_prologue): 60,000 tokens a minute, burst 1,200; this gateway had requests
for 250 tokens in the round, and none before. Demand is 75, the ask 1.5 x 75 x 2 = 225; with 25 in hand it requests 200
more. At a demand of 250 the ask is 750, cut to 1,200 / 4 = 300: what the whole limit earns in 0.3 s.

Debt that concurrent requests share is requested once. If the bus refuses it, none of them is admitted.

Concurrency is leased in places: the larger of the current and the recent peak use, and one more. A gateway that is
silent for 10 s has returned its places. Of several concurrent requests each asks for places up to its own: if ten come
and eight places exist, eight are admitted (test_burst_is_admitted_up_to_the_free_concurrency_slots).

Neighbours: `functions.fleet.quota_leases` is the bus's side.
"""

from typing import Protocol

from functions.api.snapshot import QuotaLimitsPart
from functions.decisions.quota.dimensions import CONCURRENCY, DIMENSIONS, FREES_UP_S, KV, REQUESTS, Costs, OverLimit
from functions.decisions.quota.token_bucket import US_PER_S, TokenBucket

ROUND_S = 0.25
ROUND_JITTER_RATIO = 0.1
IDLE_US = 2 * US_PER_S
_KEEP_RATIO = 0.7
_AHEAD = 3.0  # 1.5 x two rounds
_BURST_DIVISOR = 4
CREDIT_DIVISOR = 4  # part of a burst that all gateways together may owe while the bus is slow
_REQUESTS_OF_MEAN = 8
_RATE_KEEP_RATIO = 0.8  # weight of the previous granted rate per round: about a second of memory


class LimitedAccount(Protocol):
    """The part of a quota account that its lease reads."""

    limits: QuotaLimitsPart
    buckets: list[TokenBucket | None]
    limited: tuple[tuple[int, TokenBucket], ...]
    in_flight: int
    slots: int | None


class RateLease:
    """Lease of one limit: the demand seen here, and the bus's last answer. Amounts are units."""

    __slots__ = ("_left", "_left_us", "asked", "came", "demand", "granted_per_s", "largest", "request", "round_us")

    def __init__(self) -> None:
        self.asked = 0  # demand since the last round
        self.came = 0  # granted since the last round
        self.round_us: int | None = None  # time of the last round; rounds are late if CPU is short
        self.demand = 0.0  # smoothed, per round
        self.largest = 0  # largest request rejected since the last round
        self.request = 0  # mean cost of a request; 0: nothing before its end
        self.granted_per_s = 0.0
        self._left = 0  # left at the bus for all gateways
        self._left_us: int | None = None  # time of that answer; None: no answer yet

    def to_request(self, bucket: TokenBucket, idle: bool) -> int:
        """Return the units to request from the bus; negative: to return, which is all of them if the account is `idle`.
        Call once a round: it resets the demand."""
        headroom = -bucket.level
        self.demand = _KEEP_RATIO * self.demand + (1 - _KEEP_RATIO) * self.asked
        largest, self.asked, self.largest = self.largest, 0, 0
        if idle:
            self.demand = 0.0
            return -headroom  # debt is requested, to pay it
        burst = bucket.burst * bucket.unit
        ask = min(burst, max(min(int(_AHEAD * self.demand), burst // _BURST_DIVISOR), largest))
        ask -= ask % max(1, self.request)
        if headroom < ask:
            return ask - headroom
        return ask - headroom if headroom > 2 * ask else 0

    def record_grant(self, bucket: TokenBucket, amount: int, left: int, now_us: int) -> None:
        """Record a grant of the bus to this gateway (negative: what was returned), and what the bus has left for
        all."""
        bucket.level -= amount
        self.came += amount
        self._left, self._left_us = max(0, left), now_us

    def credit(self, index: int, bucket: TokenBucket, gateways: int) -> int:
        """Return how many units this gateway may owe if the bus does not answer in time.

        That is its share of the credit reserve. The requests dimension has no reserve: there it is a share of what the
        bus had left in its last answer, without what the limit has earned since, which the bus will grant itself.
        """
        burst = bucket.burst * bucket.unit
        if index == REQUESTS and self._left_us is not None:
            return min(burst // CREDIT_DIVISOR, self._left) // gateways
        return burst // CREDIT_DIVISOR // gateways

    def estimated_bus_units(self, bucket: TokenBucket, now_us: int) -> int:
        """Return the units that the bus has left by now, at most a full burst, if it has granted nothing since its last
        answer. Without any answer, return a full burst."""
        burst = bucket.burst * bucket.unit
        if self._left_us is None:
            return burst
        return min(burst, self._left + bucket.limit * max(0, now_us - self._left_us))

    def unspent(self, index: int, bucket: TokenBucket, now_us: int) -> int:
        """Return the estimated units of the bus plus its credit reserve, which is not granted to any gateway; at most a
        full burst."""
        kept = (bucket.burst - shared_burst(index, bucket)) * bucket.unit
        return min(bucket.burst * bucket.unit, self.estimated_bus_units(bucket, now_us) + kept)

    def give_back(self, bucket: TokenBucket, amount: int) -> None:
        bucket.level += amount
        self.came -= amount

    def round_ended(self, now_us: int) -> None:
        """Update the smoothed rate of grants, from those that came in the round that ends."""
        if self.round_us is not None and now_us > self.round_us:
            elapsed_s = (now_us - self.round_us) / US_PER_S
            keep_ratio = _RATE_KEEP_RATIO ** (elapsed_s / ROUND_S)
            self.granted_per_s += (1 - keep_ratio) * (max(0, self.came) / elapsed_s - self.granted_per_s)
        self.round_us, self.came = now_us, 0


class AccountLease:
    """Leases of one account in this gateway."""

    __slots__ = ("asked_us", "denied_until_us", "peak", "places", "rates", "used_us")

    def __init__(self, now_us: int) -> None:
        self.rates: dict[int, RateLease] = {}
        self.places = 0
        self.peak = 0  # largest number of concurrent requests since the last round
        self.denied_until_us: dict[int, int] = {}  # by dimension
        self.used_us = now_us
        self.asked_us = 0  # time of the last request by a round

    def rate(self, index: int) -> RateLease:
        found = self.rates.get(index)
        if found is None:
            found = self.rates[index] = RateLease()
        return found

    def find_shortage(self, account: LimitedAccount, costs: Costs, now_us: int) -> OverLimit | None:
        """Return the limit that a request lacks here, with the longest wait if there are several, or None, and note its
        demand.

        A `retry_after_s` of 0 means that the gateway should ask the bus. The request itself was counted on entry, in
        `in_flight` and among the requests a minute.
        """
        self.used_us = now_us
        self.peak = max(self.peak, account.in_flight)
        found: OverLimit | None = None
        if account.slots is not None and account.in_flight > account.slots:
            found = _no_place(account, self.denied_s(CONCURRENCY, now_us))
        for index, bucket in account.limited:
            rate = self.rate(index)
            cost = costs[index] if index != REQUESTS else bucket.unit
            rate.asked += cost
            if cost:
                rate.request += (cost - rate.request) // _REQUESTS_OF_MEAN if rate.request else cost
            if (not cost and index < KV) or bucket.level + (cost if index != REQUESTS else 0) <= 0:
                continue
            rate.largest = max(rate.largest, cost)
            wait_s = self.denied_s(index, now_us)
            if found is None or wait_s > found.retry_after_s:
                found = OverLimit(DIMENSIONS[index], bucket.limit, wait_s)
        return found

    def denies_entry(self, account: LimitedAccount, now_us: int) -> OverLimit | None:
        """Return the limit, on concurrency or requests, for which the bus has lately refused any further request, or
        None. A refusal for requests notes the demand."""
        is_full = account.slots is not None and account.in_flight >= account.slots
        if is_full and self.denied_s(CONCURRENCY, now_us) > 0.0:
            return _no_place(account, FREES_UP_S)
        bucket = account.buckets[REQUESTS]
        if bucket is not None and bucket.level + bucket.unit > 0:
            wait_s = self.denied_s(REQUESTS, now_us)
            if wait_s > 0.0:
                self.rate(REQUESTS).asked += bucket.unit
                return OverLimit("requests_per_minute", bucket.limit, wait_s)
        return None

    def units_to_request(self, account: LimitedAccount, costs: Costs, place: int) -> dict[int, int]:
        """Return what one request, whose costs have been spent, must request from the bus now, by dimension, in units
        or places; empty if this gateway holds enough.

        `place` is the number of requests in flight after its entry. Each concurrent request asks for places up to its
        own, so that as many are admitted as there are places.
        """
        found: dict[int, int] = {}
        if account.slots is not None:
            place = min(place, account.in_flight)
            if place > account.slots:
                found[CONCURRENCY] = place - account.slots
        for index, bucket in account.limited:
            cost = costs[index] if index != REQUESTS else bucket.unit
            if cost and bucket.level > 0:
                found[index] = min(bucket.level, cost)  # other requests ask for their own debt
        return found

    def debts(self, account: LimitedAccount, costs: Costs) -> dict[int, int]:
        """Return the units of debt in dimensions where the request costs nothing before its end, by dimension. A debt
        must be paid, once, before any request is admitted."""
        return {
            index: bucket.level
            for index, bucket in account.limited
            if index >= KV and not costs[index] and bucket.level > 0
        }

    def record_denial(self, index: int, wait_us: int, now_us: int) -> None:
        """Record that the bus has nothing left in this dimension for the next `wait_us`."""
        self.denied_until_us[index] = now_us + wait_us

    def places_to_request(self, account: LimitedAccount) -> int:
        """Return the places for concurrent requests to request from the bus, one more than lately used at most;
        negative: to return. Call once a round: it resets the peak."""
        desired = max(account.in_flight, self.peak) + 1
        self.peak = account.in_flight
        return desired - self.places

    def is_idle(self, now_us: int) -> bool:
        return now_us - self.used_us >= IDLE_US

    def denied_s(self, index: int, now_us: int) -> float:
        """Return the seconds until the bus may have some of this dimension again; 0: now."""
        until_us = self.denied_until_us.get(index, 0)
        return (until_us - now_us) / US_PER_S if until_us > now_us else 0.0


def shared_burst(index: int, bucket: TokenBucket) -> int:
    """Return the part of a burst that the bus grants, in the limit's unit: all for requests, for the others without the
    credit reserve."""
    return bucket.burst if index == REQUESTS else bucket.burst - bucket.burst // CREDIT_DIVISOR


def _no_place(account: LimitedAccount, retry_after_s: float) -> OverLimit:
    return OverLimit("concurrent_requests", account.limits.concurrent_requests or 0, retry_after_s)
