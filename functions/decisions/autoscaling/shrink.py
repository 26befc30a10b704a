"""What speaks against taking one replica away. Pure; one objection is enough, the first is told.

What was asked for and has not come within two start-up times is waited for no longer: a machine or a cluster that gives
less than is wanted would keep the pool from shrinking for ever. What is lacking is taken away first, one by one
(test_a_pool_that_gets_less_than_it_wants_shrinks_all_the_same).

Neighbours: `autoscaling` asks once a scaleDown rule holds.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from functions.decisions.autoscaling.forecast import Forecast
from functions.decisions.autoscaling.messages import Cause, told
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.decisions.autoscaling.rules import Looked
from functions.decisions.autoscaling.signals import PoolSignals

LATE_STARTS = 2  # start-up times after which what was asked for counts as not coming
SETTLE_S = 30.0  # after one replica was taken away, before the next is thought of


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One look at one pool."""

    policy: ScalePolicy
    signals: PoolSignals
    now_s: float
    current: int  # replicas that are wanted as of now
    ups: tuple[Looked, ...]
    forecast: Forecast | None
    grew_s: float | None
    shrank_s: float | None
    quiet_until_s: float | None

    @property
    def is_coming(self) -> bool:
        """Whether something that was asked for does not serve yet and may still come."""
        if self.signals.ready >= self.current or self.grew_s is None:
            return False
        return self.now_s - self.grew_s < LATE_STARTS * self.policy.startup_s


def objection(case: Case) -> tuple[Cause, str] | None:
    """None: one replica may go."""
    return next(_objections(case), None)


def _objections(case: Case) -> Iterator[tuple[Cause, str]]:
    signals, now_s, forecast = case.signals, case.now_s, case.forecast
    if case.quiet_until_s is not None and now_s < case.quiet_until_s:
        yield "quiet", f"nothing is taken away for another {case.quiet_until_s - now_s:.0f} s"
    for looked in case.ups:
        if looked.met is None:
            yield "blind", f"{looked.rule.metric} is not known: nothing is taken away"
        elif looked.met:
            yield "needed", f"{told(looked)}: nothing is taken away"
    if forecast is not None and forecast.replicas >= case.current:
        yield "needed", f"all {case.current} are needed in the next {forecast.horizon_s:.0f} s ({forecast.by})"
    if signals.starting or signals.draining or signals.ready > case.current or case.is_coming:
        yield "waiting", "replicas are still coming or going"
    if case.shrank_s is not None and now_s - case.shrank_s < SETTLE_S:
        yield "waiting", "the last one has just gone"
    after = _utilization_without_one(signals)
    if after is not None and after > case.policy.target_utilization_ratio:
        yield "needed", f"the others would be at {after:.0%}, above {case.policy.target_utilization_ratio:.0%}"


def _utilization_without_one(signals: PoolSignals) -> float | None:
    """Worked example (test_two_replicas_at_half_stay_two): two at 50 % leave one at 100 %."""
    if signals.utilization_ratio is None or signals.ready < 2:
        return None
    return signals.utilization_ratio * signals.ready / (signals.ready - 1)
