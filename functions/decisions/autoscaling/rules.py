"""Rules of an AutoscalingPolicy: which hold, and since when. Pure functions.

A rule's condition is met, not met, or unknown. The rule holds once it has been met in every evaluation for `hold_s`.
One evaluation that is not met or unknown restarts that time. Worked example (test_a_rule_holds_after_its_time):
`kv_usage > 85% for 3m`, met in each evaluation from 10:00:00 on, holds from 10:03:00.

Without requests (`arrivals_per_s` is 0), a time that cannot be measured counts as 0 and not as unknown. `utilization`
alone never makes a pool grow: accelerators may be busy with work that can wait. Such a rule is met only while
requests also wait in a queue, wait for a first token longer than half of the target, are rejected, or are answered by
another pool (test_utilization_alone_never_adds).

Neighbours: `decide` calls this; `functions.api.expressions` has the grammar.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

from functions.api.expressions import Ratio, ScaleRule, Seconds, Share, TimesSlo
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.decisions.autoscaling.signals import PoolSignals

_TIMES = frozenset({"p50_ttft", "p95_ttft", "p99_ttft", "p95_inter_token", "p99_inter_token", "queue_seconds"})
_WAITS_RATIO = 0.5  # share of the target for the first token


@dataclass(frozen=True, slots=True)
class Looked:
    """Result of one rule in one evaluation."""

    rule: ScaleRule
    value: float | None
    met: bool | None  # None if unknown
    since_s: float | None  # start of the time without a gap

    def holds(self, now_s: float) -> bool:
        return self.since_s is not None and now_s - self.since_s >= self.rule.hold_s


def evaluate_rules(
    rules: Sequence[ScaleRule],
    since_s: Sequence[float | None],
    policy: ScalePolicy,
    signals: PoolSignals,
    now_s: float,
) -> tuple[Looked, ...]:
    """Evaluate all rules, in order. `since_s`: since when each rule has been met, by the previous evaluation; it is
    ignored if it has another length."""
    former = since_s if len(since_s) == len(rules) else [None] * len(rules)
    return tuple(_evaluate_rule(rule, since, policy, signals, now_s) for rule, since in zip(rules, former, strict=True))


def step_replicas(rule: ScaleRule, replicas: int) -> int:
    """Return the signed number of replicas of a rule's step from `replicas` on; a percentage gives at least one."""
    amount = rule.step.amount
    if isinstance(rule.step, Share):
        return max(1, ceil(amount * replicas - 1e-9)) if amount > 0 else min(-1, floor(amount * replicas + 1e-9))
    return int(amount)


def metric_value(metric: str, signals: PoolSignals) -> float | None:
    """Return the value of a metric of `functions.api.expressions.parse.SCALE_METRICS`; None if unknown. An unknown time
    is 0 if there are no arrivals."""
    value = {
        "p50_ttft": signals.ttft_p50_s,
        "p95_ttft": signals.ttft_p95_s,
        "p99_ttft": signals.ttft_p99_s,
        "p95_inter_token": signals.itl_p95_s,
        "p99_inter_token": signals.itl_p99_s,
        "queue_seconds": signals.queue_seconds,
        "kv_usage": signals.kv_usage_ratio,
        "utilization": signals.utilization_ratio,
    }[metric]
    if value is None and metric in _TIMES and signals.arrivals_per_s == 0.0:
        return 0.0
    return value


def _evaluate_rule(
    rule: ScaleRule, since_s: float | None, policy: ScalePolicy, signals: PoolSignals, now_s: float
) -> Looked:
    value, threshold = metric_value(rule.metric, signals), _threshold(rule, policy)
    if value is None or threshold is None:
        return Looked(rule, value, None, None)
    met = _compare(rule, value, threshold)
    if met and rule.metric == "utilization" and rule.step.amount > 0:
        met = _has_waiting_requests(policy, signals)
    return Looked(rule, value, met, (now_s if since_s is None else since_s) if met else None)


def _threshold(rule: ScaleRule, policy: ScalePolicy) -> float | None:
    match rule.threshold:
        case TimesSlo(factor):
            return factor * policy.slo_s if policy.slo_s is not None else None
        case Ratio(value) | Seconds(value):
            return value


def _compare(rule: ScaleRule, value: float, threshold: float) -> bool:
    match rule.comparison:
        case ">":
            return value > threshold
        case ">=":
            return value >= threshold
        case "<":
            return value < threshold
        case "<=":
            return value <= threshold


def _has_waiting_requests(policy: ScalePolicy, signals: PoolSignals) -> bool:
    if signals.queue_seconds or signals.queued_tokens or signals.shed_per_s or signals.degraded_per_s:
        return True
    first_s, slo_s = signals.ttft_p99_s, policy.slo_s
    return first_s is not None and slo_s is not None and first_s > _WAITS_RATIO * slo_s
