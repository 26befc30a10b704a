"""Quotas while the bus, which shares them among gateways, is lost: the rate at which each limit continues.

    bus is lost   this gateway's rate           all gateways together
    no            leases                        the limit, exactly
    < 30 s        the rate last granted here    the limit, if tenants stay with their gateways
    < 10 min      limit / gateways              the limit
    longer        limit / gateways for interactive and near-real-time; batch waits for the bus

A gateway that was granted nothing of a limit lately uses its equal share from the start, so that a tenant that returns
during the outage is served. It uses at least its equal share also of a limit of which the bus had plenty left: then the
grants show how much it wanted, not how much there is. The rate never exceeds the limit, however large the last burst
was (test_a_burst_before_the_loss_is_not_a_rate). So for the first 30 s the bound in the worst case, in which all of a
tenant's clients change gateways at that moment, is

    spent(t) <= t x limit x (2 - 1 / gateways) + burst

If the bus is lost within seconds of a burst that several gateways were granted parts of, each of these may continue at
up to the limit: t x limit x gateways, for the 30 s.

A gateway's share starts with what it holds and its part of what the bus had left. Each gateway reports to a bus that
restarts empty what was spent there (`account.fit`). Until its first round, at most 250 ms, an account may be granted
what was spent already, never more than a burst (test_bus_restart_admits_at_most_one_more_burst).

The number of gateways is the number that the bus heard of in its last 10 s. Before it was ever reached, it is the
number that the registry counts, or the last known one (`gateway.quota.gateway_count`). A single gateway shares with no
other: it enforces the whole limit, exactly, with the bus or without.
Worked example (test_worked_example_from_the_prologue): 4 gateways, 60,000 tokens a minute. This one was granted 400
tokens a second lately: 400 for 30 s, then 250.
"""

from typing import Literal, NamedTuple

Step = Literal["leased", "last_rate", "share", "urgent_only"]
LAST_RATE_S = 30.0
SHARE_S = 600.0


class Regime(NamedTuple):
    """Present way of enforcing limits. Each change creates a new one."""

    step: Step
    gateways: int


def regime_of(lost_for_s: float | None, gateways: int) -> Regime:
    """Return the regime after `lost_for_s` seconds without the bus (None: the bus is reachable). A gateway that is
    alone always has the whole limit as its share."""
    if lost_for_s is None:
        return Regime("leased", gateways)
    if gateways <= 1:
        return Regime("share", 1)
    if lost_for_s < LAST_RATE_S:
        return Regime("last_rate", gateways)
    return Regime("share" if lost_for_s < SHARE_S else "urgent_only", gateways)


class Granted(NamedTuple):
    """Grants of one limit: the rate that the bus granted lately, and if the limit is scarce."""

    per_s: float  # units
    is_scarce: bool  # less than half of a burst was left for all gateways


def rate_of(step: Step, limit_units_per_us: int, granted: Granted, gateways: int) -> tuple[int, int]:
    """Return the rate at which a bucket empties without the bus: units, and the number of microseconds for them."""
    share_per_s = limit_units_per_us * 1_000_000 / max(1, gateways)
    of_last_rate = step == "last_rate" and granted.per_s >= 1.0
    if of_last_rate and (granted.is_scarce or granted.per_s > share_per_s):
        return min(int(granted.per_s), limit_units_per_us * 1_000_000), 1_000_000
    return limit_units_per_us, max(1, gateways)
