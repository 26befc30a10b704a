"""Series for each alert: a healthy fleet, and for each failure the series that differ while it lasts.

A series is written as its value, or its growth, each 30 s. `patterns` converts it to promtool's text: healthy for half
an hour, failing for twenty minutes, healthy again.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from functions.cli.drill.recording import rules_for
from functions.telemetry.alerting import groups

EVERY_S = 30
HEAD, BAD = 60, 40  # samples
TAIL = {"ErrorBudgetBurnsFast": 160, "ErrorBudgetBurns": 840}  # until the longest short window has passed
_SHORT_TAIL = 60

_GATEWAY = 'job="shoal-gateway"'
_POOL = f'{_GATEWAY},pool="base"'
_ADAPTER = f'{_GATEWAY},model="acme/bot"'

HEALTHY: dict[str, float] = {
    f'shoal_requests_total{{{_ADAPTER},class="interactive",code="200"}}': 150,
    f'shoal_requests_total{{{_ADAPTER},class="interactive",code="503"}}': 0,
    f'shoal_model_ttft_seconds_bucket{{{_ADAPTER},le="0.5"}}': 150,
    f'shoal_model_ttft_seconds_bucket{{{_ADAPTER},le="10.0"}}': 150,
    f'shoal_model_ttft_seconds_bucket{{{_ADAPTER},le="+Inf"}}': 150,
    f'shoal_inter_token_seconds_bucket{{{_POOL},class="interactive",le="0.02"}}': 3000,
    f'shoal_inter_token_seconds_bucket{{{_POOL},class="interactive",le="0.5"}}': 3000,
    f'shoal_inter_token_seconds_bucket{{{_POOL},class="interactive",le="2.5"}}': 3000,
    f'shoal_inter_token_seconds_bucket{{{_POOL},class="interactive",le="+Inf"}}': 3000,
    f'shoal_queue_seconds_bucket{{{_POOL},class="interactive",le="0.0"}}': 150,
    f'shoal_queue_seconds_bucket{{{_POOL},class="interactive",le="10.0"}}': 150,
    f'shoal_queue_seconds_bucket{{{_POOL},class="interactive",le="+Inf"}}': 150,
    f'shoal_queue_requests{{{_POOL},band="interactive"}}': 0,
    f'shoal_tokens_total{{{_POOL},kind="prompt"}}': 15_000,
    f'shoal_tokens_total{{{_POOL},kind="cached"}}': 9_000,
    f'shoal_tokens_total{{{_POOL},kind="completion"}}': 3_000,
    f"shoal_prefix_predicted_tokens_total{{{_POOL}}}": 9_000,
    f'shoal_prefix_misjudged_tokens_total{{{_POOL},direction="over"}}': 100,
    f"shoal_pool_kv_usage_ratio{{{_POOL}}}": 0.6,
    f"shoal_cold_load_waiting{{{_GATEWAY}}}": 1,
    f'shoal_cold_load_seconds_count{{{_GATEWAY},outcome="loaded"}}': 3,
    f'shoal_cold_load_seconds_count{{{_GATEWAY},outcome="slow"}}': 0,
    f'shoal_quota_rejections_total{{{_GATEWAY},dimension="tokens"}}': 3,
    f'shoal_shed_total{{{_GATEWAY},reason="saturated"}}': 0,
    f'shoal_cascade_total{{{_GATEWAY},from="small",to="base",verdict="kept"}}': 60,
    f'shoal_cascade_total{{{_GATEWAY},from="small",to="base",verdict="escalated"}}': 20,
    f'shoal_rollout_requests_total{{{_ADAPTER},group="candidate"}}': 40,
    f'shoal_rollout_failures_total{{{_ADAPTER},group="candidate"}}': 0,
    f"shoal_snapshot_epoch{{{_GATEWAY}}}": 7,
    'shoal_snapshot_epoch{job="shoal-registry"}': 7,
    'shoal_snapshot_epoch{job="shoal-agent",instance="a"}': 7,
    f"shoal_snapshot_age_seconds{{{_GATEWAY}}}": 4,
    f"shoal_bus_up{{{_GATEWAY}}}": 1,
    'shoal_bus_up{job="shoal-agent",instance="a"}': 1,
    f'shoal_pool_replicas{{{_POOL},state="ready"}}': 3,
    f'shoal_pool_replicas{{{_POOL},state="dead"}}': 0,
    f'shoal_pool_replicas{{{_POOL},state="silent"}}': 0,
    f'shoal_zone_replicas{{{_GATEWAY},zone="a",state="ready"}}': 2,
    f'shoal_zone_replicas{{{_GATEWAY},zone="b",state="ready"}}': 1,
    f'shoal_zone_replicas{{{_GATEWAY},zone="b",state="silent"}}': 0,
    f'shoal_replica_service_seconds{{{_POOL},replica="r0"}}': 0.05,
    f'shoal_replica_service_seconds{{{_POOL},replica="r1"}}': 0.06,
    'shoal_replica_accelerators{job="shoal-agent",pool="base",replica="r0"}': 1,
    'shoal_accelerator_used_ratio{job="shoal-agent",pool="base",accelerator="0",instance="a"}': 0.8,
    'shoal_accelerator_errors_total{job="shoal-agent",pool="base",accelerator="0",instance="a",kind="xid"}': 0,
    'shoal_registry_requests_total{job="shoal-registry",route="/internal/v1/changes",method="GET",code="200"}': 1,
    'shoal_controller_leader{job="shoal-controller"}': 1,
    'shoal_replica_troubled{job="shoal-registry",pool="base",replica="r1",what="slow",state="held"}': 0,
    'shoal_replica_troubled{job="shoal-registry",pool="base",replica="r1",what="accelerator",state="out"}': 0,
    'shoal_nodes_not_ready{job="shoal-registry",state="down"}': 0,
    'shoal_store_up{job="shoal-registry"}': 1,
    f"up{{{_GATEWAY}}}": 1,
    f"shoal_usage_undelivered_seconds{{{_GATEWAY}}}": 9,
    f"shoal_usage_lost_requests_total{{{_GATEWAY}}}": 0,
    f'shoal_usage_reports_total{{{_GATEWAY},outcome="refused"}}': 0,
    f'shoal_trace_receiver_up{{{_GATEWAY},receiver="store"}}': 1,
    f'shoal_trace_rows_dropped_total{{{_GATEWAY},receiver="store",reason="spool"}}': 0,
    f'shoal_trace_rows_dropped_total{{{_GATEWAY},receiver="store",reason="torn"}}': 0,
    'shoal_controller_policies_not_obeyed{job="shoal-controller",kind="RoutingPolicy",reason="PrefixCachingOff"}': 0,
    'shoal_controller_refused_objects{job="shoal-controller"}': 0,
}
_COUNTERS = ("_total{", "_bucket{", "_count{")

# By alert: the series above that differ, by a unique part of the name (after ^, the first match).
FAILING: dict[str, Mapping[str, float]] = {
    "ErrorBudgetBurnsFast": {'code="503"': 8},
    "ErrorBudgetBurns": {'code="503"': 8},
    "FirstTokenSlow": {'ttft_seconds_bucket{job="shoal-gateway",model="acme/bot",le="0.5"': 140},
    "TokensSlow": {'class="interactive",le="0.02"': 2900, 'class="interactive",le="0.5"': 2900},
    "QueueLong": {'le="0.0"': 100},
    "AcceleratorsIdleWhileRequestsQueue": {"accelerator_used_ratio": 0.1, "shoal_queue_requests": 5},
    "PrefixHitsLow": {'kind="cached"': 1_500},
    "TokensPerAcceleratorLow": {'kind="completion"': 900, "shoal_queue_requests": 5},
    "KvExhaustion": {"pool_kv_usage": 0.99},
    "HeadOfLinePrefill": {'class="interactive",le="0.02"': 2900, 'class="interactive",le="0.5"': 2900},
    "ColdStartStorm": {"cold_load_waiting": 60},
    "RoutingThrash": {'direction="over"': 7_000},
    "NoisyTenant": {"quota_rejections": 600},
    "CascadeEscalatesEverything": {'verdict="kept"': 1, 'verdict="escalated"': 80},
    "VersionDrift": {'shoal_snapshot_epoch{job="shoal-agent"': 5},
    "ReplicaCrash": {'pool="base",state="dead"': 1, 'pool="base",state="ready"': 2},
    "SlowReplica": {'replica="r1"}': 0.4},
    "SlowReplicaStays": {'what="slow"': 1},
    "AcceleratorOut": {'what="accelerator"': 1},
    "AcceleratorError": {"accelerator_errors": 1},
    "NodeLoss": {'pool="base",state="silent"': 1, 'pool="base",state="ready"': 2},
    "NodeNotReady": {"nodes_not_ready": 2},
    "ZoneLoss": {'zone="b",state="silent"': 1, 'zone="b",state="ready"': 0},
    "BadVersion": {"rollout_failures": 10},
    "Overload": {'reason="saturated"': 20},
    "RegistryAway": {"snapshot_age": 90},
    "BusAway": {'shoal_bus_up{job="shoal-agent"': 0},
    "StoreAway": {"store_up": 0},
    "ControllerAway": {"/internal/v1/changes": 0, "controller_leader": 0},
    "GatewayAway": {"^up{": 0},
    "UsageUndelivered": {"usage_undelivered": 4000},
    "UsageLost": {"usage_lost": 3},
    "TracesUndelivered": {"trace_receiver_up": 0},
    "TracesLost": {'reason="spool"': 40},
    "PolicyNotObeyed": {"policies_not_obeyed": 1},
    "ObjectsRefused": {"refused_objects": 2},
}

# Conditions that must not fire the alert: the alert, and the series that differ meanwhile, or GONE.
GONE = -1.0
QUIET: dict[str, tuple[str, Mapping[str, float]]] = {
    "a rollout while the fleet is full": (
        "BadVersion",
        {'code="503"': 100, 'class="interactive",code="200"': 50, "rollout_requests": 15},
    ),
    "gateways that were killed leave half a line": ("TracesLost", {'reason="torn"': 1}),
    "a registry that is restarted": ("UsageUndelivered", {"usage_undelivered": 300}),
    "a pool removed by a push": ("NodeLoss", {'pool="base",state="silent"': GONE, 'pool="base",state="ready"': GONE}),
}


def written(folder: Path) -> list[str]:
    """Write promtool's test files: a healthy fleet with all rules, and each alert with only the rules that it needs.

    Restricting the rules takes a tenth of the time.
    """
    files = [_written(folder, "healthy", groups(), _healthy())]
    for alert, changes in FAILING.items():
        rules = rules_for(alert, groups())
        files.append(_written(folder, alert, [{"name": alert, "rules": rules}], _case(alert, changes, rules)))
    for name, (alert, changes) in QUIET.items():
        rules = rules_for(alert, groups())
        files.append(_written(folder, name, [{"name": alert, "rules": rules}], _quiet(name, alert, changes, rules)))
    return files


def _written(folder: Path, name: str, its_groups: list[dict[str, Any]], test: dict[str, Any]) -> str:
    rules, tests = folder / f"{name}.rules.yaml", folder / f"{name}.tests.yaml"
    rules.write_text(json.dumps({"groups": its_groups}))
    tests.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": f"{EVERY_S}s", "tests": [test]}))
    return str(tests)


def _healthy() -> dict[str, Any]:
    samples = HEAD
    return {
        "name": "a healthy fleet",
        "interval": f"{EVERY_S}s",
        "input_series": [_series(name, value, value, 1) for name, value in HEALTHY.items()],
        "promql_expr_test": [{"expr": "ALERTS", "eval_time": f"{samples * EVERY_S}s", "exp_samples": []}],
    }


def _case(alert: str, changes: Mapping[str, float], rules: list[dict[str, Any]]) -> dict[str, Any]:
    tail = TAIL.get(alert, _SHORT_TAIL)
    series = _all_series(alert, changes, rules, tail)
    firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    return {
        "name": alert,
        "interval": f"{EVERY_S}s",
        "input_series": series,
        "promql_expr_test": [
            {"expr": firing, "eval_time": f"{(HEAD - 1) * EVERY_S}s", "exp_samples": []},
            {
                "expr": f"{firing} > bool 0",
                "eval_time": f"{(HEAD + BAD - 1) * EVERY_S}s",
                "exp_samples": [{"labels": "{}", "value": 1}],
            },
            {"expr": firing, "eval_time": f"{(HEAD + BAD + tail - 1) * EVERY_S}s", "exp_samples": []},
        ],
    }


def _quiet(name: str, alert: str, changes: Mapping[str, float], rules: list[dict[str, Any]]) -> dict[str, Any]:
    firing = f'count(ALERTS{{alertname="{alert}"}})'
    times = range(HEAD - 1, HEAD + BAD + _SHORT_TAIL - 1)
    return {
        "name": name,
        "interval": f"{EVERY_S}s",
        "input_series": _all_series(name, changes, rules, _SHORT_TAIL),
        "promql_expr_test": [
            {"expr": firing, "eval_time": f"{sample * EVERY_S}s", "exp_samples": []} for sample in times
        ],
    }


def _all_series(
    case: str, changes: Mapping[str, float], rules: list[dict[str, Any]], tail: int
) -> list[dict[str, str]]:
    """Return the series that the rules read."""
    series = []
    for name, value in HEALTHY.items():
        if not any(name.partition("{")[0] in rule["expr"] for rule in rules):
            continue
        found = [changed for part, changed in changes.items() if _is_of(part, name)]
        series.append(_series(name, value, found[0] if found else value, tail))
    for part in changes:
        assert sum(_is_of(part, name) for name in HEALTHY) == 1, f"{case}: {part} names no series, or several"
    return series


def _is_of(part: str, name: str) -> bool:
    return name.startswith(part[1:]) if part.startswith("^") else part in name


def _series(name: str, healthy: float, failing: float, tail: int) -> dict[str, str]:
    phases = ((healthy, HEAD), (failing, BAD), (healthy, tail))
    if failing == GONE:
        return {"series": name, "values": f"{healthy}x{HEAD - 1} stale"}
    if not any(mark in name for mark in _COUNTERS):
        return {"series": name, "values": " ".join(f"{value}x{samples - 1}" for value, samples in phases)}
    parts, total = [], 0.0
    for growth, samples in phases:
        parts.append(f"{total}+{growth}x{samples - 1}")
        total += growth * samples
    return {"series": name, "values": " ".join(parts)}
