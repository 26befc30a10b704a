"""What whoever reads a plan should know of how it came about. Pure."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from functions.simulator.fleet.start_times import StartTimes
from functions.simulator.plan.traffic import PlanTraffic

if TYPE_CHECKING:
    from functions.simulator.plan.experiment import Played


_CHATS_LAST_S = 30.0


def notes_of(played: "Played", traffic: PlanTraffic, windows: int) -> Iterator[str]:
    before, after = played.before.world, played.after.world
    start_s = StartTimes().of("cold")
    if windows == 1:
        yield "one window has no interval: every difference counts that is large enough to matter"
    if windows == 2:
        yield "two windows have very wide intervals: what they leave in doubt, three or more may tell"
    if traffic.kind != "recorded" and traffic.seconds < _CHATS_LAST_S:
        yield f"a window of {traffic.seconds:,.0f} s is shorter than most chats: more --requests make it longer"
    if traffic.kind != "recorded":
        yield "the tenants' limits are not played: they say nothing of traffic that is not the fleet's own"
    scaled = [pool.name for pool in after.generating if pool.autoscaling is not None and pool.least < pool.most]
    if scaled and traffic.seconds < 2 * start_s:
        yield (
            f"a window is {traffic.seconds:,.0f} s and a cold start {start_s:,.0f} s: what scaling does to "
            f"{', '.join(scaled)} barely shows; more --requests make longer windows"
        )
    silent = sorted(pool.name for pool in after.generating if not any(key.pool == pool.name for key in played.compared))
    if silent:
        yield f"nobody asks for {', '.join(silent)} in this traffic, so nothing is said of it"
    new = sorted(set(after.tenants) - set(before.tenants))
    if new:
        yield f"{len(new):,} new tenants ({', '.join(new[:3])}) ask for nothing in this traffic"
    pooling = [pool.name for pool in after.pools if pool.task != "generate"]
    if pooling:
        yield f"pools that write no text are not played: {', '.join(pooling)}"
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
        yield f"the promise itself changes ({', '.join(changed)}): each side is held against its own"
