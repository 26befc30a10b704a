"""Conversion of trees to values: metric names are looked up, and units checked against the metric's dimension.

Neighbours: `grammar` makes the trees and their errors.
"""

from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import cast

from lark import Token, Tree

from functions.api.expressions.grammar import ExpressionInvalid, parse_tree
from functions.api.expressions.values import (
    Comparison,
    HaltCondition,
    Ratio,
    Replicas,
    ScaleRule,
    Seconds,
    Share,
    TimesControl,
    TimesSlo,
)
from functions.api.kinds.quantities import DURATION_MAX_S
from functions.api.problems import near_miss, shown

# Metrics that expressions may use: closed tables, each metric with its dimension.
#
# A metric that is not here is rejected, so a typing error never becomes a condition that silently never holds.


class Dimension(Enum):
    RATIO = "a percentage such as 2%"
    SECONDS = "a duration such as 500ms or 2s"
    PLAIN_SECONDS = "a number of seconds such as 0.5"  # the metric's name has the unit


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    dimension: Dimension
    meaning: str
    has_slo: bool = False  # the pool's AdmissionPolicy may promise a bound for it

    @property
    def is_ratio(self) -> bool:
        return self.dimension is Dimension.RATIO


# Metrics of the new version in the running stage. A threshold may also be a multiple of the control group's value,
# such as 2x.
HALT_METRICS = (
    Metric("error_rate", Dimension.RATIO, "share of requests that failed"),
    Metric("p50_latency", Dimension.SECONDS, "median time from request to last byte"),
    Metric("p95_latency", Dimension.SECONDS, "95th percentile of the time from request to last byte"),
    Metric("p99_latency", Dimension.SECONDS, "99th percentile of the time from request to last byte"),
    Metric("p50_ttft", Dimension.SECONDS, "median time to first token"),
    Metric("p95_ttft", Dimension.SECONDS, "95th percentile of the time to first token"),
    Metric("p99_ttft", Dimension.SECONDS, "99th percentile of the time to first token"),
    Metric("p95_inter_token", Dimension.SECONDS, "95th percentile of the time between two tokens"),
    Metric("p99_inter_token", Dimension.SECONDS, "99th percentile of the time between two tokens"),
)

# Metrics of a whole pool.
SCALE_METRICS = (
    Metric("p50_ttft", Dimension.SECONDS, "median time to first token", has_slo=True),
    Metric("p95_ttft", Dimension.SECONDS, "95th percentile of the time to first token", has_slo=True),
    Metric("p99_ttft", Dimension.SECONDS, "99th percentile of the time to first token", has_slo=True),
    Metric("p95_inter_token", Dimension.SECONDS, "95th percentile of the time between two tokens"),
    Metric("p99_inter_token", Dimension.SECONDS, "99th percentile of the time between two tokens"),
    Metric("queue_seconds", Dimension.PLAIN_SECONDS, "time that a request waits in the gateway's queue"),
    Metric("kv_usage", Dimension.RATIO, "share of KV blocks in use in the fullest replica"),
    Metric("utilization", Dimension.RATIO, "work in progress as a share of the pool's capacity"),
)


_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_REPLICAS_MAX = 1000
_PERCENT_MAX = 1000
_FACTOR_MAX = 1000
_OF_CONTROL = "a multiple of the control group's such as 2x"
_OF_SLO = "a multiple of the promised bound such as 1.2 * slo"

_Tree = Tree[Token]


def parse_halt(text: str) -> HaltCondition:
    """Parse a condition that stops a rollout; ExpressionInvalid says what is wrong, and where."""
    tree = parse_tree(text, "halt")
    metric = _metric(_token(tree, 0), HALT_METRICS)
    amount = _subtree(tree, 2)
    threshold = (
        TimesControl(_factor(amount))
        if amount.data == "times_control"
        else _measured(text, amount, metric, [metric.dimension.value, _OF_CONTROL])
    )
    return HaltCondition(metric.name, _comparison(tree), threshold)


def parse_scale_rule(text: str) -> ScaleRule:
    """Parse a rule that scales a pool; ExpressionInvalid says what is wrong, and where."""
    tree = parse_tree(text, "scale_rule")
    metric = _metric(_token(tree, 0), SCALE_METRICS)
    amount = _subtree(tree, 2)
    allowed = [metric.dimension.value, *([_OF_SLO] if metric.has_slo else [])]
    threshold = (
        TimesSlo(_factor(amount))
        if amount.data == "times_slo" and metric.has_slo
        else _measured(text, amount, metric, allowed)
    )
    return ScaleRule(
        metric=metric.name,
        comparison=_comparison(tree),
        threshold=threshold,
        step=_step(_subtree(tree, 4)),
        hold_s=_milliseconds(_subtree(tree, 3)) / 1000 if isinstance(tree.children[3], Tree) else 0.0,
        names_seconds=metric.dimension is Dimension.PLAIN_SECONDS,
    )


def _metric(token: Token, metrics: tuple[Metric, ...]) -> Metric:
    for metric in metrics:
        if metric.name == token:
            return metric
    names = [metric.name for metric in metrics]
    message = f"there is no metric {shown(str(token))} here; allowed: {', '.join(names)}{near_miss(str(token), names)}"
    raise ExpressionInvalid(message, token.start_pos or 0)


def _measured(text: str, amount: _Tree, metric: Metric, allowed: list[str]) -> Ratio | Seconds:
    """Return the amount in the metric's own dimension; ExpressionInvalid for another dimension or a ratio above 100%.
    `allowed` is for that message."""
    if amount.data == "percent" and metric.is_ratio:
        percent = Decimal(_token(amount, 0))
        if percent > 100:
            raise ExpressionInvalid(f"{metric.name} is never above 100%; allowed: 0% to 100%", _start(amount))
        return Ratio(float(percent / 100))
    if amount.data == "duration" and not metric.is_ratio:
        return Seconds(_milliseconds(amount) / 1000)
    if amount.data == "number" and metric.dimension is Dimension.PLAIN_SECONDS:
        return Seconds(_whole_milliseconds(Decimal(_token(amount, 0)) * 1000, amount) / 1000)
    written = text[_start(amount) : amount.meta.end_pos]
    message = f"{metric.name} cannot be compared with {shown(written)}; allowed: {', or '.join(allowed)}"
    raise ExpressionInvalid(message, _start(amount))


def _factor(amount: _Tree) -> float:
    factor = float(_token(amount, 0))
    if not 0 < factor <= _FACTOR_MAX:
        raise ExpressionInvalid(f"allowed: a multiple above 0 and up to {_FACTOR_MAX}", _start(amount))
    return factor


def _milliseconds(duration: _Tree) -> int:
    return _whole_milliseconds(Decimal(_token(duration, 0)) * _UNIT_MS[_token(duration, 1)], duration)


def _whole_milliseconds(milliseconds: Decimal, at: _Tree) -> int:
    if milliseconds != int(milliseconds) or not 1 <= milliseconds <= DURATION_MAX_S * 1000:
        raise ExpressionInvalid("allowed: 1ms to 720h, in whole milliseconds", _start(at))
    return int(milliseconds)


def _step(step: _Tree) -> Replicas | Share:
    sign = -1 if _token(step, 0) == "-" else 1
    number = Decimal(_token(step, 1))
    if len(step.children) > 2 and step.children[2] == "%":
        most = _PERCENT_MAX if sign > 0 else 100
        if not 0 < number <= most:
            raise ExpressionInvalid(f"allowed: above 0% and up to {most}%", _start(step))
        return Share(float(sign * number / 100))
    if number != int(number) or not 1 <= number <= _REPLICAS_MAX:
        message = f"allowed: a whole number of replicas from 1 to {_REPLICAS_MAX}, or a percentage"
        raise ExpressionInvalid(message, _start(step))
    return Replicas(int(sign * number))


def _comparison(tree: _Tree) -> Comparison:
    return cast(Comparison, str(_token(tree, 1)))


def _token(tree: _Tree, index: int) -> Token:
    return cast(Token, tree.children[index])


def _subtree(tree: _Tree, index: int) -> _Tree:
    return cast(_Tree, tree.children[index])


def _start(tree: _Tree) -> int:
    return tree.meta.start_pos
