"""Autoscaling decision: the number of replicas of a pool, made every few seconds.

    1  without fresh signals nothing changes: missing data means neither too much nor too little capacity
    2  each rule is evaluated: whether it is met, since when, and for long enough
    3  grow to the most that a rule or the forecast requires. Starting replicas count: a rule fires again only when all
       requested replicas serve, or have not come within two start-up times
    4  shrink by one replica if a rule says so and there is no objection (`decide`)
    5  stay within the policy's minimum and maximum

`zero` decides for a policy with a minimum of 0 while no replica serves or no requests come.

Growth is immediate and of any size. Shrinking removes one replica at a time, and the next only after that one is
drained. A pool does not shrink within `quiet_after_growing_s` of growing, of a controller start, or of a time without
signals. So a pool turns from growing to shrinking at most once in that time, whatever the signals are: with the
shortest quiet time at most 3600 / 300 = 12 times an hour (test_any_signals_change_direction_rarely).

Worked example (test_worked_example_of_a_spike): 10 replicas, `queue_seconds > 0.5: +5%`, a start takes 300 s. At 0 s
the queue is 0.8 s: +5 % of 10 is less than one, so 11. At 15 s the queue is still 0.8 s, but one replica is starting:
11. At 300 s it serves and the queue is still 0.8 s: 12. At 315 s the forecast needs 14: 14. From 400 s on the queue
is empty and a scaleDown rule holds: 14 until 615 s, 300 s after the last growth, then 13.

Neighbours: `rules` evaluates rules, `forecast` predicts the need, `policy` has the limits. The controller and the
simulator call the same function.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from functions.decisions.autoscaling.forecast import Forecast
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.decisions.autoscaling.rules import Looked, evaluate_rules, step_replicas
from functions.decisions.autoscaling.signals import PoolSignals
from functions.decisions.autoscaling.zero import Idleness, decide_near_zero, update_idleness

# Causes of a decision, few enough for a metric's label; the reasons are sentences.


Cause = Literal["steady", "bounds", "rule", "forecast", "blind", "quiet", "needed", "waiting", "demand", "idle"]


def describe_rule(looked: Looked) -> str:
    """Return a scaling rule's text with the measured value: `queue_seconds > 0.5: +5% (0.8 s)`."""
    value = looked.value if looked.value is not None else 0.0
    shown = f"{value:.0%}" if looked.rule.metric in ("kv_usage", "utilization") else f"{value:.3g} s"
    return f"{looked.rule.text} ({shown})"


# Objections to scaling down by one replica: one is enough, and the first is reported.
#
# Requested replicas that have not come after two start-up times do not block shrinking: a cluster without capacity
# would block it for ever. The missing replicas are removed first, one by one
# (test_pool_below_its_desired_size_still_shrinks).


LATE_STARTS = 2  # start-up times after which requested replicas count as not coming
SETTLE_S = 30.0  # pause after removing one replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Inputs of one decision about one pool."""

    policy: ScalePolicy
    signals: PoolSignals
    now_s: float
    current: int  # replicas that are wanted now
    ups: tuple[Looked, ...]
    forecast: Forecast | None
    grew_s: float | None
    shrank_s: float | None
    quiet_until_s: float | None

    @property
    def is_coming(self) -> bool:
        """True if a requested replica does not serve yet, and growing was not so long ago that it must have failed."""
        if self.signals.ready >= self.current or self.grew_s is None:
            return False
        return self.now_s - self.grew_s < LATE_STARTS * self.policy.startup_s


def objection(case: Case) -> tuple[Cause, str] | None:
    """Return the first objection to removing one replica, as cause and text; None allows the removal."""
    return next(_objections(case), None)


def _objections(case: Case) -> Iterator[tuple[Cause, str]]:
    signals, now_s, forecast = case.signals, case.now_s, case.forecast
    if case.quiet_until_s is not None and now_s < case.quiet_until_s:
        yield "quiet", f"no replica is removed for another {case.quiet_until_s - now_s:.0f} s"
    for looked in case.ups:
        if looked.met is None:
            yield "blind", f"{looked.rule.metric} is unknown: no replica is removed"
        elif looked.met:
            yield "needed", f"{describe_rule(looked)}: no replica is removed"
    if forecast is not None and forecast.replicas >= case.current:
        yield "needed", f"all {case.current} replicas are needed in the next {forecast.horizon_s:.0f} s ({forecast.by})"
    if signals.starting or signals.draining or signals.ready > case.current or case.is_coming:
        yield "waiting", "replicas are still starting or draining"
    if case.shrank_s is not None and now_s - case.shrank_s < SETTLE_S:
        yield "waiting", f"a replica was removed less than {SETTLE_S:.0f} s ago"
    after = _utilization_without_one(signals)
    target = case.policy.target_utilization_ratio
    if after is not None and after > target:
        yield "needed", f"the other replicas would be at {after:.0%}, above the target of {target:.0%}"


def _utilization_without_one(signals: PoolSignals) -> float | None:
    """Return the utilization if one ready replica less did the same work; None if unknown or with fewer than two.
    Worked example (test_two_replicas_at_half_load_stay_two): two replicas at 50 % leave one at 100 %."""
    if signals.utilization_ratio is None or signals.ready < 2:
        return None
    return signals.utilization_ratio * signals.ready / (signals.ready - 1)


@dataclass(frozen=True, slots=True)
class ScalerState:
    """State of one pool's scaler. A new one adopts the present replicas and does not shrink during the quiet time."""

    desired: int | None = None
    up_since_s: tuple[float | None, ...] = ()
    down_since_s: tuple[float | None, ...] = ()
    grew_s: float | None = None
    shrank_s: float | None = None
    quiet_until_s: float | None = None
    idleness: Idleness = field(default_factory=Idleness)


@dataclass(frozen=True, slots=True)
class Scaling:
    desired: int  # serving or starting replicas, without warm ones
    cause: Cause
    reason: str


def decide(
    state: ScalerState, policy: ScalePolicy, signals: PoolSignals, now_s: float, forecast: Forecast | None = None
) -> tuple[ScalerState, Scaling]:
    current = signals.committed if state.desired is None else state.desired
    if state.desired is None:
        state = _quiet(state, policy, now_s)
    age_s = now_s - signals.at_s
    if age_s > policy.stale_s:
        blind = replace(_quiet(state, policy, now_s), up_since_s=(), down_since_s=(), idleness=Idleness())
        return _ended(blind, policy, current, ("blind", f"no signals for {age_s:.0f} s: nothing changes"))
    if policy.min_replicas == 0:
        state = replace(state, idleness=update_idleness(state.idleness, signals, now_s))
        zero = decide_near_zero(state.idleness, policy, signals, current, now_s)
        if zero is not None:
            grown = replace(_quiet(state, policy, now_s), grew_s=now_s) if zero.replicas > current else state
            return _ended(grown, policy, zero.replicas, (zero.cause, zero.reason))
    ups = evaluate_rules(policy.up, state.up_since_s, policy, signals, now_s)
    downs = evaluate_rules(policy.down, state.down_since_s, policy, signals, now_s)
    case = Case(
        policy=policy, signals=signals, now_s=now_s, current=current, ups=ups, forecast=forecast,
        grew_s=state.grew_s, shrank_s=state.shrank_s, quiet_until_s=state.quiet_until_s,
    )  # fmt: skip
    state = replace(state, up_since_s=_since(ups), down_since_s=_since(downs))
    wanted, why = _growth(case)
    if wanted > current:
        return _ended(replace(_quiet(state, policy, now_s), grew_s=now_s), policy, wanted, why)
    asks = next((looked for looked in downs if looked.holds(now_s)), None)
    if asks is None or current <= max(1, policy.min_replicas):
        return _ended(state, policy, current, why)
    against = objection(case)
    if against is not None:
        return _ended(state, policy, current, against)
    shrunk = replace(state, shrank_s=now_s)
    return _ended(shrunk, policy, current - 1, ("rule", f"{describe_rule(asks)}: one replica is drained"))


def _growth(case: Case) -> tuple[int, tuple[Cause, str]]:
    """Return the replicas required, at least the present number, with cause and reason."""
    wanted, why = case.current, _NO_CHANGE
    holding = [looked for looked in case.ups if looked.holds(case.now_s)]
    if holding:
        most = max(holding, key=lambda looked: step_replicas(looked.rule, case.current))
        if case.is_coming:
            why = (
                "waiting",
                f"{describe_rule(most)}: {case.current - case.signals.ready} requested replicas are still starting",
            )
        else:
            wanted, why = case.current + step_replicas(most.rule, case.current), ("rule", describe_rule(most))
    forecast = case.forecast
    if forecast is not None and forecast.replicas > wanted:
        needed = f"{forecast.replicas} replicas are needed in the next {forecast.horizon_s:.0f} s ({forecast.by})"
        return forecast.replicas, ("forecast", needed)
    return wanted, why


def _ended(state: ScalerState, policy: ScalePolicy, wanted: int, why: tuple[Cause, str]) -> tuple[ScalerState, Scaling]:
    desired = min(policy.max_replicas, max(policy.min_replicas, wanted))
    if desired != wanted:
        why = "bounds", f"{why[1]}; the policy allows {policy.min_replicas} to {policy.max_replicas}"
    return replace(state, desired=desired), Scaling(desired, *why)


def _quiet(state: ScalerState, policy: ScalePolicy, now_s: float) -> ScalerState:
    return replace(state, quiet_until_s=now_s + policy.quiet_after_growing_s)


def _since(looks: tuple[Looked, ...]) -> tuple[float | None, ...]:
    return tuple(looked.since_s for looked in looks)


_NO_CHANGE: tuple[Cause, str] = ("steady", "no rule requires a change")
