"""Unobeyed policies that the declarations alone reveal; a policy that can be obeyed is no finding."""

import pytest

from functions.api.kinds.quota_policy import QuotaLimits
from functions.api.loader import load_texts
from functions.controller.unobeyed.declared import declared_findings
from functions.controller.unobeyed.findings import Unobeyed, by_key, objects_by_reason
from functions.decisions.quota.dimensions import DIMENSIONS
from tests.controller.configs import pool
from tests.simulator.plan.configs import pool as prefill_pool

NOT_MEASURED = {
    "max_context_tokens",
    "max_output_tokens",
    "token_burst_seconds",
}  # caps of one request; a burst's length


def service(name: str, *args: str, task: str = "") -> str:
    labels = f"shoal.dev/pool: {name}" + (f", shoal.dev/task: {task}" if task else "")
    text = pool(name, args=", ".join(["--max-model-len=2048", *args]), bounds="minReplicas: 1, maxReplicas: 4")
    return text.replace(f"shoal.dev/pool: {name}", labels)


def policy(kind: str, spec: str, name: str = "p") -> str:
    return f"apiVersion: shoal.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n"


def found(*documents: str) -> list[Unobeyed]:
    return sorted(declared_findings(load_texts([("a.yaml", "---\n".join(documents).encode())]).objects))


def said(*documents: str) -> list[tuple[str, str, str]]:
    return [(each.key, each.reason, each.problem.key_path) for each in found(*documents)]


EVENTS = policy("RoutingPolicy", '{pools: ["*"], prefix: {source: events}}')


def test_cache_events_without_prefix_caching_are_a_finding() -> None:
    uncached = service("a", "--no-enable-prefix-caching")
    assert said(uncached, service("b"), EVENTS) == [("routingpolicies/p", "PrefixCachingOff", "spec.prefix.source")]
    (finding,) = found(uncached, EVENTS)
    assert "source: sent" in finding.problem.message
    assert finding.problem.place.file == "a.yaml"


@pytest.mark.parametrize("spec", ['{pools: ["*"]}', '{pools: ["*"], prefix: {source: sent}}'])
def test_default_value_is_no_finding(spec: str) -> None:
    assert not said(service("a", "--no-enable-prefix-caching"), policy("RoutingPolicy", spec))


def test_finding_follows_the_policy_that_governs_the_pool() -> None:
    sent = policy("RoutingPolicy", "{pools: [a], prefix: {source: sent}}", "other")
    assert not said(service("a", "--no-enable-prefix-caching"), service("b"), EVENTS, sent)


def test_classifier_over_pools_of_different_tasks_is_a_finding() -> None:
    spec = '{pools: ["*"], classifier: {model: auto, rules: [{when: {tools: true}, to: b}], otherwise: a}}'
    rule = ("routingpolicies/p", "ClassifierMixesTasks", "spec.classifier.rules[0].to")
    assert said(service("a"), service("b", task="embed"), policy("RoutingPolicy", spec)) == [rule]
    assert not said(service("a"), service("b"), policy("RoutingPolicy", spec))


@pytest.mark.parametrize("key", ["fallback: [{when: saturated, from: a, to: b}]", "cascade: [{from: a, to: b}]"])
def test_fallback_or_cascade_to_a_pool_of_another_task_is_a_finding(key: str) -> None:
    spec = f'{{pools: ["*"], {key}}}'
    path = f"spec.{key.partition(':')[0]}[0].to"
    assert said(service("a"), service("b", task="embed"), policy("RoutingPolicy", spec)) == [
        ("routingpolicies/p", "TasksDiffer", path)
    ]
    assert not said(service("a"), service("b"), policy("RoutingPolicy", spec))


RULES = '{pool: a, replicas: {min: 1, max: 2}, scaleUp: ["%s"], scaleDown: ["%s"]}'


def test_rule_on_a_signal_embedding_engines_lack_is_a_finding() -> None:
    rules = policy("AutoscalingPolicy", RULES % ("utilization > 75%: +1", "utilization < 30%: -1"))
    assert said(service("a", task="embed"), rules) == [
        ("autoscalingpolicies/p", "SignalNotMeasured", "spec.scaleUp[0]")
    ], "an idle one is known to be idle, so that it may shrink"
    gaps = policy("AutoscalingPolicy", RULES % ("queue_seconds > 1: +1", "p99_inter_token < 10ms: -1"))
    assert [path for _, _, path in said(service("a", task="embed"), gaps)] == ["spec.scaleDown[0]"]
    assert not said(service("a"), rules, policy("QuotaPolicy", "{}"))


def test_rule_on_token_gaps_of_a_prefill_pool_is_a_finding() -> None:
    """A single token has no gap: a scaleUp rule on gaps would keep the pool from shrinking for ever."""
    reads = prefill_pool("a", model="m", reads_gigabits_per_s=100, replicas=2)
    gaps = policy("AutoscalingPolicy", RULES % ("p99_inter_token > 60ms: +1", "utilization < 30%: -1"))
    assert said(prefill_pool("m"), reads, gaps) == [("autoscalingpolicies/p", "SignalNotMeasured", "spec.scaleUp[0]")]
    use = policy("AutoscalingPolicy", RULES % ("utilization > 75%: +1", "utilization < 30%: -1"))
    assert not said(prefill_pool("m"), reads, use)


@pytest.mark.parametrize(
    ("args", "task", "is_found"),
    [
        (("--runner=pooling",), "", True),
        (("--convert", "embed"), "", True),
        (("--runner", "pooling"), "embed", False),
        (("--runner=generate",), "embed", True),
        (("--convert=classify",), "embed", True),
        (("--convert=embed",), "score", False),
        (("--runner=auto",), "", False),
        ((), "embed", False),
        ((), "", False),
    ],
)
def test_engine_started_for_another_task_is_a_finding(args: tuple[str, ...], task: str, is_found: bool) -> None:
    expected = [("inferenceservices/a", "TaskContradictsEngine", "metadata.labels")] if is_found else []
    assert said(service("a", *args, task=task)) == expected


def test_objects_are_counted_once_per_reason() -> None:
    findings = found(service("a", "--no-enable-prefix-caching"), service("b", "--no-enable-prefix-caching"), EVENTS)
    assert len(findings) == 2
    assert objects_by_reason(findings) == {("RoutingPolicy", "PrefixCachingOff"): 1}
    assert list(by_key(findings)) == ["routingpolicies/p"]


# Limits that never cause a finding, with the reason (isolation: tests/gateway/test_intake.py).


def test_every_limit_is_measured() -> None:
    measured = {*DIMENSIONS, "concurrent_requests"}
    assert set(QuotaLimits.model_fields) == measured | NOT_MEASURED
