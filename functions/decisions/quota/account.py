"""Quota account of one tenant or key. A request is charged to every limit of its tier, or to none.

    dimension                       reserved                              charged in the end
    requests_per_minute             1                                     1, however it ended
    input_tokens_per_minute         prompt_tokens                         prompt - cached x (1 - weight)
    output_tokens_per_minute        expected_output_tokens, then steps    what was generated, or delivered
    kv_token_seconds_per_minute     kv_tokens x learned seconds           `request.cost.kv_token_seconds`
    gpu_seconds_per_hour            nothing, but no debt may be left      `request.cost.gpu_seconds`
    concurrent_requests             1                                     0, when it ends

A request is reserved in every account it belongs to (its tenant's, its key's) or in none: `find_shortage` checks,
`spend` reserves. The KV seconds per token are learnt from what earlier requests were charged, so that many
concurrent requests cannot all start for free. The first one reserves nothing and is charged in the end. GPU seconds
are charged only in the end: a request that decodes alone uses a hundred times as much as one among a hundred. A
request that reserves nothing in one of these two dimensions is admitted only while there is no debt in it.

The state outlives snapshots: a limit that a push changes applies to the next request, and requests in flight from
before count against it. For the same reason, requests in flight are counted even without a limit.
Neighbours: `token_bucket` is one rate; `reservation` is one request's progress through its accounts.
"""

from functions.api.snapshot import QuotaLimitsPart
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

UNLIMITED = QuotaLimitsPart()
_LEARN_RATIO = 0.2  # weight of one request: five requests determine most of the estimate
_GPU_BURST_DIVISOR = 6  # ten minutes of an hour: concurrent requests may all be charged at the same time


class QuotaAccount:
    """Quota state of one tenant or key. Owned by one event loop. Times are whole microseconds of a monotonic clock."""

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
        self.limited: tuple[tuple[int, TokenBucket], ...] = ()  # the buckets that exist, with their dimension
        self.in_flight = 0
        self.slots: int | None = None  # maximum of concurrent requests; None: no limit
        self.kv_s_per_token = 0.0
        self.lease: AccountLease | None = None
        self.regime: Regime | None = None  # how limits are shared with other gateways; None: not shared

    def set_limits(self, limits: QuotaLimitsPart, now_us: int) -> None:
        """Apply these limits from now on, and have the regime applied anew. If they are equal to the current ones,
        nothing changes."""
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
                bucket.change_limit(limit, _burst(index, limits, limit))
        self.limited = tuple((index, bucket) for index, bucket in enumerate(self.buckets) if bucket is not None)

    def find_shortage(self, costs: Costs, now_us: int) -> OverLimit | None:
        """Return the limit with the longest wait among those that the costs exceed, or None if all costs fit. Nothing
        is spent."""
        worst: OverLimit | None = None
        for index, bucket in self.limited:
            cost = costs[index]
            if cost or index >= KV:  # KV and GPU: even a cost of 0 requires that there is no debt
                if now_us > bucket.updated_us:
                    bucket.advance(now_us)
                if cost + bucket.level > bucket.capacity and not bucket.has_headroom(
                    cost
                ):  # the inline comparison settles most cases without a call
                    wait_s = bucket.wait_us(cost) / US_PER_S
                    if worst is None or wait_s > worst.retry_after_s:
                        worst = OverLimit(DIMENSIONS[index], bucket.limit, wait_s)
        return worst

    def denies_entry(self, now_us: int) -> OverLimit | None:
        """Return the limit on concurrency or requests per minute that one more request would exceed, or None. Nothing
        is spent."""
        if self.slots is not None and self.in_flight >= self.slots:
            return OverLimit("concurrent_requests", self.limits.concurrent_requests or 0, FREES_UP_S)
        bucket = self.buckets[REQUESTS]
        if bucket is None:
            return None
        bucket.advance(now_us)
        wait_us = bucket.wait_us(bucket.unit) if bucket.level + bucket.unit > bucket.capacity else 0
        return OverLimit(DIMENSIONS[REQUESTS], bucket.limit, wait_us / US_PER_S) if wait_us else None

    def spend(self, costs: Costs, now_us: int) -> None:
        """Spend the costs, by dimension, even beyond the limits. Negative costs are refunds."""
        for index, bucket in self.limited:
            cost = costs[index]
            if cost:  # inlined `TokenBucket.spend`: a dozen calls per request took 3 us
                if now_us > bucket.updated_us:
                    bucket.advance(now_us)
                level = bucket.level + cost
                bucket.level = level if level > 0 or bucket.leased else 0

    def end_request(self) -> None:
        """Count the end of a request in flight; ValueError if none is."""
        if self.in_flight <= 0:
            raise ValueError("more requests ended than began")
        self.in_flight -= 1

    def record_usage(self, tokens: int, kv_token_seconds: float, gpu_units: int = 0) -> None:
        """Learn the KV seconds per token from an ended request, and count its unreserved GPU units as lease demand."""
        if tokens > 0:
            self.kv_s_per_token += _LEARN_RATIO * (kv_token_seconds / tokens - self.kv_s_per_token)
        if self.lease is not None and self.buckets[GPU] is not None:
            self.lease.rate(GPU).asked += gpu_units

    def is_idle(self, now_us: int) -> bool:
        """Return True if the account can be forgotten without changing a decision: nothing is in flight, held or owed.

        Leased units were charged by the bus. An account that holds some is kept until a round has returned them, 2 s
        after the last use. The rest is then less than the millionth that the bus counts in.
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


def apply_regime(account: QuotaAccount, regime: Regime, now_us: int, *, bus_knows: bool = True) -> None:
    """Switch the account to this way of enforcing limits, leased from the bus or without it. Debt stays.

    Without the bus, this gateway keeps what it holds and adds its share of what the bus had left. A lease starts empty.
    If the bus does not know what was spent here, the lease starts with that as debt; paying it informs the bus.
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
        bucket.set_rate(rate, divisor, bucket.burst * bucket.unit // regime.gateways)
        if was_leased:
            bucket.level = max(0, bucket.capacity - headroom - left // regime.gateways)


def _burst(index: int, limits: QuotaLimitsPart, limit: int) -> int:
    if index == REQUESTS:
        return limit
    largest = {INPUT: limits.max_context_tokens, OUTPUT: limits.max_output_tokens}.get(index) or 0
    if index == GPU:
        largest = limit // _GPU_BURST_DIVISOR
    elif limits.token_burst_seconds is not None:
        largest = max(largest, limit * limits.token_burst_seconds // PERIODS_S[index])
    return burst_of(limit, largest)
