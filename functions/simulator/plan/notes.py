"""Notes on a plan: how its figures were obtained, and which parts of both sides are not simulated.

`unsimulated` lists the changes that are not simulated; this module lists unsimulated parts of the planned side,
changed or not.
"""

from collections.abc import Iterator

from functions.gateway.limits import Limits
from functions.simulator.fleet.start_times import StartTimes
from functions.simulator.plan.experiment import Played
from functions.simulator.plan.planned_fleet import PlannedFleet
from functions.simulator.plan.traffic import PlanTraffic

_CHATS_LAST_S = 30.0


def notes_of(played: Played, traffic: PlanTraffic, windows: int) -> Iterator[str]:
    before, after = played.before.fleet, played.after.fleet
    start_s = StartTimes().of(traffic.start)
    if windows == 1:
        yield "one window gives no interval: every difference counts that is large enough to matter"
    if windows == 2:
        yield "two windows give very wide intervals: three or more may decide what is in doubt"
    if traffic.kind != "recorded" and traffic.seconds < _CHATS_LAST_S:
        yield f"a window of {traffic.seconds:,.0f} s is shorter than most chats: more --requests make it longer"
    if traffic.kind != "recorded":
        yield "the tenants' limits are not simulated: they do not apply to traffic that is not the fleet's own"
    scaled = [pool.name for pool in after.generating if pool.autoscaling is not None and pool.least < pool.most]
    if scaled and traffic.seconds < 2 * start_s:
        yield (
            f"a window is {traffic.seconds:,.0f} s and a start ({traffic.start}) {start_s:,.0f} s: "
            f"what scaling does to {', '.join(scaled)} barely shows; more --requests make longer windows"
        )
    yield from _from_zero(after, traffic, start_s)
    silent = sorted(pool.name for pool in after.generating if not any(key.pool == pool.name for key in played.compared))
    if silent:
        yield f"no request for {', '.join(silent)} in this traffic, so it has no figures"
    new = sorted(set(after.tenants) - set(before.tenants))
    if new:
        yield f"{len(new):,} new tenants ({', '.join(new[:3])}) send no requests in this traffic"
    yield from _not_played(after)
    if not all(pool.engine.price_is_known for pool in after.generating):
        yield "costs are in accelerator-hours where shoal.dev/accelerator-price-per-hour is not set: one costs 1"
    changed = [
        f"{pool.name} {band.name}"
        for pool in after.generating
        if (former := before.pool(pool.name)) is not None
        for band in pool.admission.bands
        if former.promised_ms(band.name) != pool.promised_ms(band.name)
    ]
    if changed:
        yield f"the promise itself changes ({', '.join(changed)}): each side is measured by its own"


def _not_played(fleet: PlannedFleet) -> Iterator[str]:
    """Yield the parts of the fleet that are not simulated; figures are those of a fleet without them."""
    policies = {pool.routing.name: pool.routing for pool in fleet.generating}
    unplayed: dict[str, list[str]] = {
        "pools that generate no text": [pool.name for pool in fleet.pools if pool.task != "generate"],
        "KV caches in host memory, of pools": [pool.name for pool in fleet.generating if pool.entry.kv_host_bytes],
        "speculative decoding, of pools": [pool.name for pool in fleet.generating if pool.speculates],
        "accelerator-second limits, of tiers": [
            quota.name for quota in fleet.tenants.values() if quota.limits.gpu_seconds_per_hour is not None
        ],
        "cascades, of routing": [name for name, policy in policies.items() if policy.cascade],
        "classifiers, of routing": [name for name, policy in policies.items() if policy.classifier is not None],
    }
    for what, names in unplayed.items():
        if names:
            yield f"{what} {', '.join(sorted(set(names)))}: not simulated on either side"
    blooms = sorted(name for name, policy in policies.items() if policy.prefix_source == "bloom")
    if blooms:
        yield f"prefix.source bloom, of routing {', '.join(blooms)}: simulated as `sent`"


def _from_zero(fleet: PlannedFleet, traffic: PlanTraffic, start_s: float) -> Iterator[str]:
    sleepers = [pool for pool in fleet.answering if pool.may_sleep]
    if not sleepers:
        return
    named = ", ".join(pool.name for pool in sleepers)
    yield (
        f"{named} may go to zero: a start takes {start_s:,.0f} s there (--start says from where), a request waits for "
        f"{Limits().wake_wait_s:,.0f} s at most, and a rejected request is not sent again"
    )
    late = [pool for pool in sleepers if pool.autoscaling and pool.autoscaling.idle_after_s >= traffic.seconds]
    if late:
        names = ", ".join(pool.name for pool in late)
        yield f"no window is long enough for {names} to go to zero after its idleAfter; more --requests make it longer"
