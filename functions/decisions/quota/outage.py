"""Quotas without the bus that shares them among gateways: at what rate each limit goes on.

    in touch      leases                        the limit, exactly
    < 30 s        the rate last granted here    the limit, where tenants stay with their gateways
    < 10 min      limit / gateways              the limit
    after that    limit / gateways for interactive and near-real-time; batch waits for the bus

A gateway that was granted nothing of a limit lately takes its equal share from the start: a tenant that comes back
while the bus is away is served. It takes at least that of a limit of which the bus had plenty left, too: what it was
granted says then how much it wanted, not how much there is. Nor is it ever more than the limit, however much of a
burst was granted a moment ago (test_a_burst_before_the_loss_is_not_a_rate). So for the first 30 s the bound is, at
worst, where all of a tenant's clients change gateways in that moment,

    spent(t) <= t x limit x (2 - 1 / gateways) + burst

and, where the bus is lost within seconds of a burst that several gateways were granted parts of, each of these may go
on at up to the limit: t x limit x gateways, for the 30 s.

A gateway's share begins with what it has in hand and its part of what the bus had left. A bus that comes back empty is
told by each gateway what was spent there (`account.fit`). Until its first round has, at most 250 ms, an account may be
granted what was spent already, never more than a burst
(test_a_bus_that_restarts_costs_at_most_one_more_burst).

Gateways are those that the bus heard of in its last 10 s; before it was ever reached, those that the registry counts,
or that were there last (`gateway.quota.gateway_count`). One gateway alone needs nobody: it keeps the whole limit,
exactly, with bus or without.
Worked example (test_worked_example_from_the_prologue): 4 gateways, 60,000 tokens a minute. This one was granted 400
tokens a second lately: 400 for 30 s, then 250.
"""

from typing import Literal, NamedTuple

Step = Literal["leased", "last_rate", "share", "urgent_only"]
LAST_RATE_S = 30.0
SHARE_S = 600.0


class Regime(NamedTuple):
    """How limits are kept now; a new one at each change."""

    step: Step
    gateways: int


def regime_of(lost_for_s: float | None, gateways: int) -> Regime:
    """`lost_for_s`: since the bus was last in touch; None: it is."""
    if lost_for_s is None:
        return Regime("leased", gateways)
    if gateways <= 1:
        return Regime("share", 1)
    if lost_for_s < LAST_RATE_S:
        return Regime("last_rate", gateways)
    return Regime("share" if lost_for_s < SHARE_S else "urgent_only", gateways)


class Granted(NamedTuple):
    """What the bus last gave of a limit."""

    per_s: float  # units
    is_scarce: bool  # less than half of a burst was left for everybody


def rate_of(step: Step, limit_units_per_us: int, granted: Granted, gateways: int) -> tuple[int, int]:
    """At which rate a bucket empties without the bus: units, and in how many microseconds."""
    share_per_s = limit_units_per_us * 1_000_000 / max(1, gateways)
    of_last_rate = step == "last_rate" and granted.per_s >= 1.0
    if of_last_rate and (granted.is_scarce or granted.per_s > share_per_s):
        return min(int(granted.per_s), limit_units_per_us * 1_000_000), 1_000_000
    return limit_units_per_us, max(1, gateways)
