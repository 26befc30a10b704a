"""Scaling rules: when they hold, for how long, and unknown metrics."""

import pytest

from functions.api.expressions import parse_scale_rule
from functions.decisions.autoscaling.rules import evaluate_rules, metric_value, step_replicas
from tests.decisions.autoscaling.scaling_cases import policy, signals


def test_a_rule_holds_after_its_time() -> None:
    rules, since = (parse_scale_rule("kv_usage > 85% for 3m: +5%"),), (None,)
    held = []
    for at_s in range(0, 240, 30):
        looks = evaluate_rules(rules, since, policy(), signals(at_s, 10, kv_usage_ratio=0.9), at_s)
        since = (looks[0].since_s,)
        held.append(looks[0].holds(at_s))
    assert held == [False] * 6 + [True] * 2


@pytest.mark.parametrize("gap", [0.5, None])
def test_one_round_without_the_condition_restarts_the_time(gap: float | None) -> None:
    rule = (parse_scale_rule("kv_usage > 85% for 1m: +1"),)
    since: tuple[float | None, ...] = (0.0,)
    since = (evaluate_rules(rule, since, policy(), signals(30, 10, kv_usage_ratio=gap), 30)[0].since_s,)
    assert since == (None,)
    assert not evaluate_rules(rule, since, policy(), signals(60, 10, kv_usage_ratio=0.9), 60)[0].holds(60)


@pytest.mark.parametrize(
    ("text", "replicas", "step"),
    [
        ("queue_seconds > 0.5: +5%", 10, 1),
        ("queue_seconds > 0.5: +5%", 40, 2),
        ("queue_seconds > 0.5: +5%", 41, 3),
        ("queue_seconds > 0.5: +5%", 0, 1),
        ("queue_seconds > 0.5: +10%", 30, 3),
        ("queue_seconds > 0.5: +3", 10, 3),
        ("utilization < 40%: -1", 10, -1),
        ("utilization < 40%: -10%", 5, -1),
    ],
)
def test_steps_are_at_least_one_replica(text: str, replicas: int, step: int) -> None:
    assert step_replicas(parse_scale_rule(text), replicas) == step


def test_utilization_alone_never_adds() -> None:
    rules = (parse_scale_rule("utilization > 75%: +1"),)

    def met(**given: float) -> bool | None:
        return evaluate_rules(rules, (), policy(), signals(0, 10, utilization_ratio=1.0, **given), 0.0)[0].met

    assert met() is False
    assert met(queue_seconds=0.01) is True
    assert met(ttft_p99_s=0.3) is True
    assert met(shed_per_s=0.1) is True
    assert met(degraded_per_s=0.1) is True


@pytest.mark.parametrize(("comparison", "met"), [(">", False), (">=", True), ("<", False), ("<=", True)])
def test_comparisons_at_the_threshold(comparison: str, met: bool) -> None:
    rules = (parse_scale_rule(f"kv_usage {comparison} 85%: +1"),)
    assert evaluate_rules(rules, (), policy(), signals(0, 1, kv_usage_ratio=0.85), 0.0)[0].met is met


def test_rule_on_an_undeclared_slo_is_unknown() -> None:
    rules = (parse_scale_rule("p99_ttft > 1.2 * slo: +10%"),)
    assert evaluate_rules(rules, (), policy(slo_s=None), signals(0, 1, ttft_p99_s=9.0), 0.0)[0].met is None


def test_changed_rules_restart_their_time() -> None:
    rules = (parse_scale_rule("kv_usage > 85% for 1m: +1"), parse_scale_rule("queue_seconds > 0.5: +1"))
    looks = evaluate_rules(rules, (0.0,), policy(), signals(100, 1, kv_usage_ratio=0.9), 100.0)
    assert not looks[0].holds(100.0)


def test_every_metric_of_the_grammar_is_measured() -> None:
    from functions.api.expressions.parse import SCALE_METRICS

    assert {metric.name: metric_value(metric.name, signals(0, 1)) for metric in SCALE_METRICS} == {
        "p50_ttft": 0.1,
        "p95_ttft": 0.15,
        "p99_ttft": 0.2,
        "p95_inter_token": 0.015,
        "p99_inter_token": 0.02,
        "queue_seconds": 0.0,
        "kv_usage": 0.3,
        "utilization": 0.6,
    }


def test_latency_is_zero_without_arrivals() -> None:
    silent = signals(0, 1, arrivals_per_s=0.0, ttft_p99_s=None, queue_seconds=None, kv_usage_ratio=None)
    assert metric_value("p99_ttft", silent) == 0.0
    assert metric_value("queue_seconds", silent) == 0.0
    assert metric_value("kv_usage", silent) is None
    assert metric_value("p99_ttft", signals(0, 1, ttft_p99_s=None)) is None
