"""Quota leases: what a gateway takes of its tenants' limits ahead of need, so that requests skip the bus.

Each round (250 ms, +-10 %) and for each limit of each account in use:

    demand = 0.3 x asked for in this round + 0.7 x demand before            what was refused was asked for as well
    ask    = min(1.5 x demand x 2 rounds, burst / 4), at least the largest request refused, at most the burst,
             in whole requests of the mean size
    room < ask         want ask - room                debt is part of it
    room > 2 x ask     give back room - ask           hoarding starves the other gateways
    unused for 2 s     give back all

Of a burst the bus shares out three fourths; the last is for those who come while it is slow (`shared_burst`), so that
both together are never more than the one bucket bears. Of requests it shares out all, and what comes on credit is
part of what it had left when it last said so (`RateLease.credit`): where nothing was left, nobody comes. It grants at
most half of what is left to any one ask, so that who comes first does not take all, and a part in whole requests,
too: parts of requests, at each of many gateways, serve nobody (test_all_of_a_limit_passes). A request that finds no
room here asks once, at once, for exactly what is missing in all its limits, all or nothing; a refusal is remembered
until the time that the bus gave for it.

All gateways together hold at most what the bus has granted, which is never more than the one bucket bears:

    outstanding <= min(burst, gateways x 2 x ask)        a gateway that dies takes at most 2 x ask of it along

Worked example (test_worked_example_from_the_prologue): 60,000 tokens a minute, burst 1,200; this gateway was asked for
250 tokens in the round, and for nothing before. Demand is 75, the ask 1.5 x 75 x 2 = 225; with 25 in hand it wants
200 more. At a demand of 250 the ask is 750, cut to 1,200 / 4 = 300: what the whole limit earns in 0.3 s.

What several that ask at once owe together is asked for once, and none of them comes where it is refused.

Concurrency is leased in places: as many as are taken and were lately at most, and one more; a gateway that is silent
for 10 s has given its places back. Of several that ask at once each asks for places up to its own: of ten where there
are eight, eight come (test_of_a_burst_as_many_come_as_there_are_places_for).

Neighbours: `functions.fleet.quota_leases` is the bus's side of this.
"""

from typing import Protocol

from functions.api.snapshot import QuotaLimits
from functions.decisions.quota.dimensions import CONCURRENCY, DIMENSIONS, FREES_UP_S, KV, REQUESTS, Costs, OverLimit
from functions.decisions.quota.token_bucket import US_PER_S, TokenBucket

ROUND_S = 0.25
ROUND_JITTER_RATIO = 0.1
IDLE_US = 2 * US_PER_S
_KEEP_RATIO = 0.7
_AHEAD = 3.0  # 1.5 x two rounds
_BURST_DIVISOR = 4
CREDIT_DIVISOR = 4  # of a burst: what gateways may owe together while the bus is slow
_REQUESTS_OF_MEAN = 8
_RATE_KEEP_RATIO = 0.8  # of the granted rate a round: a second's worth of memory


class LimitedAccount(Protocol):
    """A quota account as its lease reads it."""

    limits: QuotaLimits
    buckets: list[TokenBucket | None]
    limited: tuple[tuple[int, TokenBucket], ...]
    in_flight: int
    slots: int | None


class RateLease:
    """One limit's: what was asked for here, and what the bus said last. Amounts are units."""

    __slots__ = ("_left", "_left_us", "asked", "came", "demand", "granted_per_s", "largest", "request", "round_us")

    def __init__(self) -> None:
        self.asked = 0  # since the last round
        self.came = 0  # the same, granted
        self.round_us: int | None = None  # when it was; rounds are late where there is too little CPU
        self.demand = 0.0  # a round
        self.largest = 0  # request that was refused since the last round
        self.request = 0  # what one takes on the mean; 0: nothing before its end
        self.granted_per_s = 0.0
        self._left = 0  # at the bus, for everybody
        self._left_us: int | None = None  # as it said then; None: it never did

    def to_request(self, bucket: TokenBucket, idle: bool) -> int:
        """How much more to ask for, negative: to give back. Once a round: it forgets what was asked for."""
        headroom = -bucket.level
        self.demand = _KEEP_RATIO * self.demand + (1 - _KEEP_RATIO) * self.asked
        largest, self.asked, self.largest = self.largest, 0, 0
        if idle:
            self.demand = 0.0
            return -headroom  # debt is asked for, to be paid
        burst = bucket.burst * bucket.unit
        ask = min(burst, max(min(int(_AHEAD * self.demand), burst // _BURST_DIVISOR), largest))
        ask -= ask % max(1, self.request)
        if headroom < ask:
            return ask - headroom
        return ask - headroom if headroom > 2 * ask else 0

    def granted(self, bucket: TokenBucket, amount: int, left: int, now_us: int) -> None:
        """The bus's answer."""
        bucket.level -= amount
        self.came += amount
        self._left, self._left_us = max(0, left), now_us

    def credit(self, index: int, bucket: TokenBucket, gateways: int) -> int:
        """How much may be owed here where the bus does not answer in time.

        Of what is kept for credit this gateway's share. Of requests nothing is kept: there it is of what the bus had
        left for everybody when it last said so, without what came in since, which it will grant itself.
        """
        burst = bucket.burst * bucket.unit
        if index == REQUESTS and self._left_us is not None:
            return min(burst // CREDIT_DIVISOR, self._left) // gateways
        return burst // CREDIT_DIVISOR // gateways

    def left(self, bucket: TokenBucket, now_us: int) -> int:
        """What the bus has for everybody by now, if nobody took any since it said so; all, where it never did."""
        burst = bucket.burst * bucket.unit
        if self._left_us is None:
            return burst
        return min(burst, self._left + bucket.limit * max(0, now_us - self._left_us))

    def unspent(self, index: int, bucket: TokenBucket, now_us: int) -> int:
        """The same with what the bus keeps for credit: that part of a burst is spent by nobody."""
        kept = (bucket.burst - shared_burst(index, bucket)) * bucket.unit
        return min(bucket.burst * bucket.unit, self.left(bucket, now_us) + kept)

    def give_back(self, bucket: TokenBucket, amount: int) -> None:
        bucket.level += amount
        self.came -= amount

    def round_ended(self, now_us: int) -> None:
        """Know the rate at which it was granted."""
        if self.round_us is not None and now_us > self.round_us:
            elapsed_s = (now_us - self.round_us) / US_PER_S
            keep_ratio = _RATE_KEEP_RATIO ** (elapsed_s / ROUND_S)
            self.granted_per_s += (1 - keep_ratio) * (max(0, self.came) / elapsed_s - self.granted_per_s)
        self.round_us, self.came = now_us, 0


class AccountLease:
    """What one account has leased here."""

    __slots__ = ("asked_us", "denied_until_us", "peak", "places", "rates", "used_us")

    def __init__(self, now_us: int) -> None:
        self.rates: dict[int, RateLease] = {}
        self.places = 0
        self.peak = 0  # under way at one time, since the last round
        self.denied_until_us: dict[int, int] = {}  # by dimension
        self.used_us = now_us
        self.asked_us = 0  # by a round, last

    def rate(self, index: int) -> RateLease:
        found = self.rates.get(index)
        if found is None:
            found = self.rates[index] = RateLease()
        return found

    def short(self, account: LimitedAccount, costs: Costs, now_us: int) -> OverLimit | None:
        """What a request that has entered lacks here, where 0 s says that it is to be asked for. Notes the demand.

        The request itself was counted as it entered, in `in_flight` and among the requests a minute.
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
        """Whether the bus has said lately that no further request can come."""
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

    def missing(self, account: LimitedAccount, costs: Costs, place: int) -> dict[int, int]:
        """What to ask for, once for one request whose costs have been taken: by dimension, in units or places.

        `place`: how many were under way when it had entered. Of several that ask at once each asks for places up to
        its own, so that as many come as there are places for.
        """
        found: dict[int, int] = {}
        if account.slots is not None:
            place = min(place, account.in_flight)
            if place > account.slots:
                found[CONCURRENCY] = place - account.slots
        for index, bucket in account.limited:
            cost = costs[index] if index != REQUESTS else bucket.unit
            if cost and bucket.level > 0:
                found[index] = min(bucket.level, cost)  # what others owe is asked for with them
        return found

    def owed(self, account: LimitedAccount, costs: Costs) -> dict[int, int]:
        """Debt where the request costs nothing before its end: it has to be paid before anybody comes, and once."""
        return {
            index: bucket.level
            for index, bucket in account.limited
            if index >= KV and not costs[index] and bucket.level > 0
        }

    def deny(self, index: int, wait_us: int, now_us: int) -> None:
        """The bus has none before then."""
        self.denied_until_us[index] = now_us + wait_us

    def places_to_request(self, account: LimitedAccount) -> int:
        """How many more places to ask for, negative: to give back. Once a round."""
        desired = max(account.in_flight, self.peak) + 1
        self.peak = account.in_flight
        return desired - self.places

    def is_idle(self, now_us: int) -> bool:
        return now_us - self.used_us >= IDLE_US

    def denied_s(self, index: int, now_us: int) -> float:
        """Seconds until the bus may have some again; 0: it may now."""
        until_us = self.denied_until_us.get(index, 0)
        return (until_us - now_us) / US_PER_S if until_us > now_us else 0.0


def shared_burst(index: int, bucket: TokenBucket) -> int:
    """How much the bus lets come at once: of tokens and seconds what is not kept for credit."""
    return bucket.burst if index == REQUESTS else bucket.burst - bucket.burst // CREDIT_DIVISOR


def _no_place(account: LimitedAccount, retry_after_s: float) -> OverLimit:
    return OverLimit("concurrent_requests", account.limits.concurrent_requests or 0, retry_after_s)
