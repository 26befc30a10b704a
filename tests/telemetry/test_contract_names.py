"""Metrics that the public contract promises: each exists with its labels on the promised processes."""

import pytest

from docs.generate.metrics import families

# By name in a scrape: kind, labels, and the processes that expose it.
PROMISED: dict[str, tuple[str, set[str], set[str]]] = {
    "shoal_requests_total": ("counter", {"model", "class", "code"}, {"gateway"}),
    "shoal_ttft_seconds": ("histogram", {"pool", "class"}, {"gateway"}),
    "shoal_inter_token_seconds": ("histogram", {"pool", "class"}, {"gateway"}),
    "shoal_request_seconds": ("histogram", {"pool", "class"}, {"gateway"}),
    "shoal_queue_seconds": ("histogram", {"pool", "class"}, {"gateway"}),
    "shoal_queue_depth_tokens": ("gauge", {"pool", "band"}, {"gateway"}),
    "shoal_tokens_total": ("counter", {"pool", "kind"}, {"gateway"}),
    "shoal_prefix_hit_ratio": ("gauge", {"pool"}, {"gateway"}),
    "shoal_kv_usage_ratio": ("gauge", {"replica"}, {"replica", "gateway"}),
    "shoal_replica_state": ("gauge", {"replica", "state"}, {"replica", "registry", "gateway"}),
    "shoal_adapter_loads_total": ("counter", {"tier"}, {"replica"}),
    "shoal_adapter_load_seconds": ("histogram", set(), {"replica"}),
    "shoal_route_decisions_total": ("counter", {"reason"}, {"gateway"}),
    "shoal_retries_total": ("counter", set(), {"gateway"}),
    "shoal_shed_total": ("counter", {"reason"}, {"gateway"}),
    "shoal_degraded_total": ("counter", {"from", "to"}, {"gateway"}),
    "shoal_quota_rejections_total": ("counter", {"dimension"}, {"gateway"}),
    "shoal_rollout_stage": ("gauge", {"model"}, {"registry", "controller"}),
    "shoal_autoscaler_desired_replicas": ("gauge", {"pool", "reason"}, {"registry", "controller"}),
    "shoal_tokens_per_second_per_accelerator": ("gauge", {"pool"}, {"replica"}),
    "shoal_snapshot_epoch": ("gauge", set(), {"gateway", "registry", "replica"}),
    "shoal_snapshot_age_seconds": ("gauge", set(), {"gateway", "registry", "replica"}),
}


@pytest.mark.parametrize("process", ["gateway", "registry", "replica", "controller"])
def test_process_exposes_its_promised_metrics(process: str) -> None:
    """A missing name leaves users' dashboards and alerts empty, and no other test would notice."""
    found = {each.name: (each.kind, set(each.labels)) for each in families(process)}
    promised = {name: (kind, labels) for name, (kind, labels, of) in PROMISED.items() if process in of}
    assert {name: found.get(name) for name in promised} == promised
