"""Signals and policies for tests of autoscaling: each case changes only what it names."""

from dataclasses import replace
from typing import Any

from functions.api.expressions import parse_scale_rule
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.decisions.autoscaling.signals import PoolSignals

UP = ("p99_ttft > 1.2 * slo for 60s: +10%", "queue_seconds > 0.5: +5%", "kv_usage > 85% for 3m: +5%")
DOWN = ("utilization < 40% for 15m: -1",)


def policy(up: tuple[str, ...] = UP, down: tuple[str, ...] = DOWN, **given: Any) -> ScalePolicy:
    plain = ScalePolicy(
        min_replicas=1,
        max_replicas=100,
        up=tuple(map(parse_scale_rule, up)),
        down=tuple(map(parse_scale_rule, down)),
        slo_s=0.5,
    )
    return replace(plain, **given)


def signals(at_s: float, ready: int, **given: Any) -> PoolSignals:
    calm = PoolSignals(
        at_s=at_s,
        ready=ready,
        arrivals_per_s=10.0,
        arriving_tokens_per_s=5_000.0,
        queue_seconds=0.0,
        queued_tokens=0.0,
        ttft_p50_s=0.1,
        ttft_p95_s=0.15,
        ttft_p99_s=0.2,
        itl_p95_s=0.015,
        itl_p99_s=0.02,
        kv_usage_ratio=0.3,
        utilization_ratio=0.6,
        shed_per_s=0.0,
        degraded_per_s=0.0,
    )
    return replace(calm, **given)
