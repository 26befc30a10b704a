"""Token bucket of one rate limit: spending fills it, time empties it, exact in whole numbers.

    level(now) = max(0, level - elapsed_us x limit)      capacity = min(limit, max(burst, largest)) x period
    a cost may be spent while  level + min(cost, capacity) <= capacity

A token is `period_s` million units, so that a limit of L tokens a period empties L units each microsecond, without
rounding. The bound for any t seconds, with q the largest single cost, is

    spent(t) <= limit x t / period + max(capacity, q)

Bursts are 2 % of the period's limit (1.2 s of a minute), at least one request of the largest length that the tier
allows. So any minute sees at most 1.02 x the limit, or the limit and one such request, unless a policy allows a larger
burst (`tokenBurstSeconds`; its kind's default is 10, because concurrent requests reserve at the same time). Requests
alone may burst by a whole minute's worth: they cost nothing by themselves, and clients know this from other providers.
Worked example (test_worked_example_from_the_prologue): 60,000 tokens a minute, burst 1,200. 1,200 pass in one instant.
600 more wait 0.6 s, since 1,000 empty in a second. 3,000 in one request wait 1.2 s, until the bucket is empty, and
leave 1,800 of debt: for 1.8 s nothing passes, and 100 more wait for 1.9 s. In any minute at most 60,000 + 3,000 pass.

A rejected cost adds nothing. If a cost turns out larger than what was reserved, the rest is added whatever the level
(`add`). That is debt, and later requests wait for it. If a limit shrinks, the bucket is at most full.

A lease is the same bucket with capacity 0 that time does not empty; a grant puts its level below zero.
Neighbours: `account` has one for each dimension; `lease` decides how much to request from the bus.
"""

US_PER_S = 1_000_000
_BURST_DIVISOR = 50  # 2 %


def burst_of(limit: int, largest: int = 0) -> int:
    """Return the part of a limit that may be spent in one burst, in the unit that the limit counts."""
    return min(limit, max(limit // _BURST_DIVISOR, largest, 1))


class TokenBucket:
    """Bucket of one limit. Times are whole microseconds of a monotonic clock; amounts are units unless noted."""

    __slots__ = ("burst", "capacity", "leased", "level", "limit", "rate_divisor", "rate_units", "unit", "updated_us")

    def __init__(self, limit: int, burst: int, period_s: int, now_us: int) -> None:
        self.limit = limit
        self.burst = burst
        self.unit = period_s * US_PER_S  # units per token
        self.capacity = burst * self.unit
        self.rate_units, self.rate_divisor = limit, 1  # emptied each microsecond
        self.level = 0
        self.leased = False
        self.updated_us = now_us

    def advance(self, now_us: int) -> None:
        """Empty the bucket (earn units) for the time up to `now_us`; a lease does not empty. Earlier times are
        ignored."""
        elapsed_us = now_us - self.updated_us
        if elapsed_us <= 0:
            return
        self.updated_us = now_us
        if self.level > 0 and not self.leased:
            level = self.level - elapsed_us * self.rate_units // self.rate_divisor
            self.level = level if level > 0 else 0

    @property
    def headroom(self) -> int:
        """Units that may be spent as of the last `advance`; negative while in debt."""
        return self.capacity - self.level

    def has_headroom(self, cost: int) -> bool:
        headroom = self.capacity - self.level
        return cost <= headroom or (cost > self.capacity > 0 and headroom >= self.capacity)

    def spend(self, cost: int, now_us: int) -> None:
        """Call `advance` and `add` in one step: spend or refund whatever the level."""
        if now_us > self.updated_us:
            self.advance(now_us)
        level = self.level + cost
        self.level = level if level > 0 or self.leased else 0

    def add(self, cost: int) -> None:
        """Spend `cost`, or refund it if negative, whatever the level; only a lease's level may fall below 0. Call
        `advance` first."""
        level = self.level + cost
        self.level = level if level > 0 or self.leased else 0

    def wait_us(self, cost: int) -> int:
        """Return the microseconds until `cost` (at most the capacity) may be spent; one period if the bucket never
        empties."""
        if self.has_headroom(cost):
            return 0
        if self.rate_units <= 0:
            return self.unit  # as many microseconds as the period has
        return -(-(min(cost, self.capacity) - self.headroom) * self.rate_divisor // self.rate_units)

    def full_again_us(self) -> int:
        """Return the microseconds until a full burst may be spent again; 0 also if the bucket never empties."""
        return self.level * self.rate_divisor // self.rate_units if self.level > 0 and self.rate_units > 0 else 0

    def change_limit(self, limit: int, burst: int) -> None:
        """Apply another limit. What was spent stays spent, up to the new capacity.

        A lease keeps its grants and its debt.
        """
        self.limit, self.burst = limit, burst
        if self.leased:
            return
        self.set_rate(limit, 1, burst * self.unit)
        self.level = min(self.level, self.capacity)

    def set_rate(self, rate_units: int, rate_divisor: int, capacity: int) -> None:
        """Empty at `rate_units` per `rate_divisor` microseconds (the limit's rate or a part of it), and end a lease: a
        level below 0 becomes 0."""
        self.rate_units, self.rate_divisor, self.capacity = rate_units, rate_divisor, capacity
        self.leased, self.level = False, max(self.level, 0)

    def lease(self, level: int) -> None:
        """Become a lease at this level: only grants can be spent, and time empties nothing."""
        self.rate_units, self.rate_divisor, self.capacity = 0, 1, 0
        self.leased, self.level = True, level
