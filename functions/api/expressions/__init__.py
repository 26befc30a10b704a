"""Policy expressions: `error_rate > 2%`, `p99_ttft > 1.2 * slo for 60s: +10%`.

    parse_halt("p99_latency > 2x")            # HaltCondition: stops a rollout's stage
    parse_scale_rule("kv_usage > 85% for 3m: +5%")  # ScaleRule: adds or removes replicas

Both are frozen values with typed units, and `.text` is their canonical spelling, which parses back to the same
value. ExpressionInvalid says what is wrong, and at which character.

`grammar` has the syntax, `parse` the closed tables of metrics, `values` the results.
"""

from functions.api.expressions.grammar import ExpressionInvalid
from functions.api.expressions.parse import parse_halt, parse_scale_rule
from functions.api.expressions.values import (
    HaltCondition,
    Ratio,
    Replicas,
    ScaleRule,
    Seconds,
    Share,
    TimesControl,
    TimesSlo,
)

__all__ = [
    "ExpressionInvalid",
    "HaltCondition",
    "Ratio",
    "Replicas",
    "ScaleRule",
    "Seconds",
    "Share",
    "TimesControl",
    "TimesSlo",
    "parse_halt",
    "parse_scale_rule",
]
