"""Rules of an AutoscalingPolicy: which hold, and since when. Pure.

A rule's condition is met, not met, or not known. It holds once it was met at every look for `hold_s`; one look at which
it is not met or not known begins that time anew. Worked example (test_a_rule_holds_after_its_time): `kv_usage > 85% for
3m`, met at each look from 10:00:00 on, holds from 10:03:00.

Where nobody asks (`arrivals_per_s` is 0), times that cannot be measured are not unknown: no request was late.
`utilization` alone never makes a pool grow: accelerators may be busy with work that nobody waits for. Such a rule is
met only while somebody waits as well: in a queue, or for a first token longer than half of what was promised; or is
refused, or answered by another pool (test_utilization_alone_never_adds).

Neighbours: `decide` asks; `functions.api.expressions` has the grammar.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

from functions.api.expressions import Ratio, ScaleRule, Seconds, Share, TimesSlo
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.decisions.autoscaling.signals import PoolSignals

_TIMES = frozenset({"p50_ttft", "p95_ttft", "p99_ttft", "p95_inter_token", "p99_inter_token", "queue_seconds"})
_WAITS_RATIO = 0.5  # of the promised first token


@dataclass(frozen=True, slots=True)
class Looked:
    """One rule at one look."""

    rule: ScaleRule
    value: float | None
    met: bool | None  # None: not known
    since_s: float | None  # met without a gap

    def holds(self, now_s: float) -> bool:
        return self.since_s is not None and now_s - self.since_s >= self.rule.hold_s


def look(
    rules: Sequence[ScaleRule],
    since_s: Sequence[float | None],
    policy: ScalePolicy,
    signals: PoolSignals,
    now_s: float,
) -> tuple[Looked, ...]:
    """`since_s`: of the former look, one for each rule; of any other length it counts for nothing."""
    former = since_s if len(since_s) == len(rules) else [None] * len(rules)
    return tuple(_looked(rule, since, policy, signals, now_s) for rule, since in zip(rules, former, strict=True))


def step_replicas(rule: ScaleRule, replicas: int) -> int:
    """How many replicas a rule's step is, signed: at least one, whatever the percentage says."""
    amount = rule.step.amount
    if isinstance(rule.step, Share):
        return max(1, ceil(amount * replicas - 1e-9)) if amount > 0 else min(-1, floor(amount * replicas + 1e-9))
    return int(amount)


def measured(metric: str, signals: PoolSignals) -> float | None:
    """The value of a metric of `functions.api.expressions.parse.SCALE_METRICS`; None: not known."""
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


def _looked(rule: ScaleRule, since_s: float | None, policy: ScalePolicy, signals: PoolSignals, now_s: float) -> Looked:
    value, threshold = measured(rule.metric, signals), _threshold(rule, policy)
    if value is None or threshold is None:
        return Looked(rule, value, None, None)
    met = _compare(rule, value, threshold)
    if met and rule.metric == "utilization" and rule.step.amount > 0:
        met = _somebody_waits(policy, signals)
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


def _somebody_waits(policy: ScalePolicy, signals: PoolSignals) -> bool:
    if signals.queue_seconds or signals.queued_tokens or signals.shed_per_s or signals.degraded_per_s:
        return True
    first_s, slo_s = signals.ttft_p99_s, policy.slo_s
    return first_s is not None and slo_s is not None and first_s > _WAITS_RATIO * slo_s
