"""Quota account of one tenant or key: every limit of its tier, all of them or none.

    dimension                       reserved                              charged in the end
    requests_per_minute             1                                     1, whatever became of it
    input_tokens_per_minute         prompt_tokens                         prompt - cached x (1 - weight)
    output_tokens_per_minute        expected_output_tokens, then steps    what was generated, or delivered
    kv_token_seconds_per_minute     kv_tokens x learned seconds           `request.cost.kv_token_seconds`
    gpu_seconds_per_hour            nothing, but no debt may be left      `request.cost.gpu_seconds`
    concurrent_requests             1                                     0, when it ends

A request is taken from every account it belongs to (its tenant's, its key's) or from none: `lacks` asks, `take` takes.
What one token holds of the cache is learnt from what earlier requests were charged, so that many at once cannot all
come for nothing; the first comes at no price and is charged in the end. The accelerator's seconds are charged in the
end alone: alone in its steps, a request takes a hundred times of what it takes among a hundred. What comes at no price
comes while there is no debt.

The state outlives snapshots: a limit that a push changes holds for the next request, and what was under way before
counts against it. What is under way is counted for everybody, limited or not, for the same reason.
Neighbours: `token_bucket` is one rate; `reservation` is one request's way through its accounts.
"""

from functions.api.snapshot import QuotaLimits
from functions.decisions.quota.dimensions import (
    DIMENSIONS,
    FREES_UP_S,
    GPU,
    INPUT,
    KV,
    OUTPUT,
    PERIODS_S,
    REQUESTS,
    UNITS_PER_MICRO,
    Costs,
    OverLimit,
)
from functions.decisions.quota.lease import AccountLease
from functions.decisions.quota.outage import Granted, Regime, rate_of
from functions.decisions.quota.token_bucket import US_PER_S, TokenBucket, burst_of

UNLIMITED = QuotaLimits()
_LEARN_RATIO = 0.2  # of what one request held, into what is known: five requests say most of it
_GPU_BURST_DIVISOR = 6  # ten minutes of an hour: it is charged at the end, so what runs side by side comes at once


class QuotaAccount:
    """Owned by one event loop. Times are whole microseconds of a monotonic clock."""

    __slots__ = (
        "buckets",
        "in_flight",
        "kv_s_per_token",
        "lease",
        "limited",
        "limits",
        "regime",
        "slots",
    )

    def __init__(self) -> None:
        self.limits = UNLIMITED
        self.buckets: list[TokenBucket | None] = [None] * len(DIMENSIONS)
        self.limited: tuple[tuple[int, TokenBucket], ...] = ()  # the same, without those that do not limit
        self.in_flight = 0
        self.slots: int | None = None  # how many at a time; None: no limit
        self.kv_s_per_token = 0.0
        self.lease: AccountLease | None = None
        self.regime: Regime | None = None  # how its limits are shared with other gateways; None: not at all

    def hold(self, limits: QuotaLimits, now_us: int) -> None:
        """From now on these limits. Where they are the same, nothing changes."""
        if limits == self.limits:
            self.limits = limits
            return
        self.limits, self.slots, self.regime = limits, limits.concurrent_requests, None
        for index, name in enumerate(DIMENSIONS):
            limit, bucket = getattr(limits, name), self.buckets[index]
            if limit is None:
                self.buckets[index] = None
            elif bucket is None:
                self.buckets[index] = TokenBucket(limit, _burst(index, limits, limit), PERIODS_S[index], now_us)
            elif (limit, _burst(index, limits, limit)) != (bucket.limit, bucket.burst):
                bucket.change(limit, _burst(index, limits, limit))
        self.limited = tuple((index, bucket) for index, bucket in enumerate(self.buckets) if bucket is not None)

    def lacks(self, costs: Costs, now_us: int) -> OverLimit | None:
        """The dimension that has to be waited for longest, or None: all of it may come."""
        worst: OverLimit | None = None
        for index, bucket in self.limited:
            cost = costs[index]
            if cost or index >= KV:  # these may cost nothing before the end, and then want no debt
                if now_us > bucket.updated_us:
                    bucket.advance(now_us)
                if cost + bucket.level > bucket.capacity and not bucket.has_headroom(
                    cost
                ):  # most need no call to see it
                    wait_s = bucket.wait_us(cost) / US_PER_S
                    if worst is None or wait_s > worst.retry_after_s:
                        worst = OverLimit(DIMENSIONS[index], bucket.limit, wait_s)
        return worst

    def denies_entry(self, now_us: int) -> OverLimit | None:
        """Why one more request may not come, before anything is known of it: too many at a time, or a minute."""
        if self.slots is not None and self.in_flight >= self.slots:
            return OverLimit("concurrent_requests", self.limits.concurrent_requests or 0, FREES_UP_S)
        bucket = self.buckets[REQUESTS]
        if bucket is None:
            return None
        bucket.advance(now_us)
        wait_us = bucket.wait_us(bucket.unit) if bucket.level + bucket.unit > bucket.capacity else 0
        return OverLimit(DIMENSIONS[REQUESTS], bucket.limit, wait_us / US_PER_S) if wait_us else None

    def take(self, costs: Costs, now_us: int) -> None:
        """Spend; what is negative is given back."""
        for index, bucket in self.limited:
            cost = costs[index]
            if cost:  # `TokenBucket.spend` without its call: a dozen of them a request took 3 us
                if now_us > bucket.updated_us:
                    bucket.advance(now_us)
                level = bucket.level + cost
                bucket.level = level if level > 0 or bucket.leased else 0

    def leave(self) -> None:
        """A request that entered has ended, however it ended."""
        if self.in_flight <= 0:
            raise ValueError("more requests ended than began")
        self.in_flight -= 1

    def learn(self, tokens: int, kv_token_seconds: float, gpu_units: int = 0) -> None:
        """What a request of so many tokens held, and what it was charged in the end without having asked for it."""
        if tokens > 0:
            self.kv_s_per_token += _LEARN_RATIO * (kv_token_seconds / tokens - self.kv_s_per_token)
        if self.lease is not None and self.buckets[GPU] is not None:
            self.lease.rate(GPU).asked += gpu_units

    def is_idle(self, now_us: int) -> bool:
        """Whether forgetting this would change no decision: nothing is under way, held or owed.

        What is leased the bus has charged. It is kept until a round has given it back, 2 s after the last use; what is
        left then is less than the millionth that the bus counts in.
        """
        if self.in_flight:
            return False
        lease = self.lease
        if lease is not None and not lease.is_idle(now_us):
            return False
        if lease is not None and lease.places and self.regime is not None and self.regime.step == "leased":
            return False
        for index, bucket in self.limited:
            bucket.advance(now_us)
            if not -UNITS_PER_MICRO[index] < bucket.level <= 0:
                return False
        return True


def fit(account: QuotaAccount, regime: Regime, now_us: int, *, bus_knows: bool = True) -> None:
    """Keep the account's limits in this way from now on. Debt stays.

    Without the bus, what is in hand stays in hand, and of what the bus had left comes this gateway's share. A lease
    begins with nothing; where the bus does not know what was spent here, with a debt of that: paying it tells the bus.
    """
    account.regime = regime
    lease = account.lease
    if lease is None:
        lease = account.lease = AccountLease(now_us)
    limit = account.limits.concurrent_requests
    if regime.step == "leased":
        lease.places = 0
        account.slots = None if limit is None else 0
    else:
        account.slots = None if limit is None else min(limit, max(1, limit // regime.gateways))
    for index, bucket in account.limited:
        bucket.advance(now_us)
        headroom, was_leased = bucket.headroom, bucket.leased
        if regime.step == "leased":
            bucket.lease(bucket.level if was_leased or not bus_knows else max(0, -headroom))
            continue
        of_bus, left = lease.rate(index), lease.rate(index).unspent(index, bucket, now_us)
        granted = Granted(of_bus.granted_per_s, is_scarce=2 * left < bucket.burst * bucket.unit)
        rate, divisor = rate_of(regime.step, bucket.limit, granted, regime.gateways)
        bucket.keep(rate, divisor, bucket.burst * bucket.unit // regime.gateways)
        if was_leased:
            bucket.level = max(0, bucket.capacity - headroom - left // regime.gateways)


def _burst(index: int, limits: QuotaLimits, limit: int) -> int:
    if index == REQUESTS:
        return limit
    largest = {INPUT: limits.max_context_tokens, OUTPUT: limits.max_output_tokens}.get(index) or 0
    if index == GPU:
        largest = limit // _GPU_BURST_DIVISOR
    elif limits.token_burst_seconds is not None:
        largest = max(largest, limit * limits.token_burst_seconds // PERIODS_S[index])
    return burst_of(limit, largest)
