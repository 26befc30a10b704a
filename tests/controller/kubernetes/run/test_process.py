"""The controller as a process against a real API server and a real registry: what operators rely on."""

import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from functions.api.snapshot import ModelEntry
from functions.controller.kubernetes.run.writes import FINALIZER
from tests.controller.kubernetes.run.rig import (
    PLURALS,
    POOL,
    ROOT,
    TOKEN,
    ControllerProcess,
    Rig,
    model_spec,
    names,
    populate,
    service_spec,
    settled,
    tenant_spec,
    versions,
)
from tests.controller.kubernetes.run.waiting import WAIT_S, until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]


def test_custom_resources_become_the_snapshot_and_are_ready(rig: Rig) -> None:
    populate(rig)
    controller = rig.controller()
    settled(rig, controller)
    snapshot = rig.snapshot()
    assert snapshot is not None
    assert snapshot.revision.startswith("kubernetes@")
    assert [tenant.name for tenant in snapshot.tenants] == ["t0", "t1"]
    assert [model.id for model in snapshot.models] == ["t0/m0", "t0/m1"]
    assert [pool.name for pool in snapshot.pools] == [POOL]
    assert httpx.get(f"{controller.url}/readyz", timeout=30).text == "ok\n"
    assert httpx.get(f"{controller.url}/healthz", timeout=30).status_code == 200
    assert controller.leads
    assert controller.end(signal.SIGTERM) == 0


@pytest.mark.soak
def test_idle_fleet_causes_no_write_in_ten_resyncs(rig: Rig) -> None:
    populate(rig)
    controller = rig.controller(RESYNC_S="0.3")
    settled(rig, controller)
    until(lambda: _writes_over(controller, 3) == 0, "and Events of the first are written")
    before = versions(rig)
    assert _writes_over(controller, 10) == 0
    assert versions(rig) == before


def _writes_over(controller: ControllerProcess, passes: int) -> float:
    """Count the writes during so many passes."""
    writes, done = (
        controller.metric("api_requests", what="writes"),
        controller.metric("reconciles_total", result="done"),
    )
    until(lambda: controller.metric("reconciles_total", result="done") >= done + passes, f"{passes} more passes")
    return controller.metric("api_requests", what="writes") - writes


def test_one_bad_object_stops_no_other_and_its_last_good_version_stays(rig: Rig) -> None:
    populate(rig)
    controller = rig.controller()
    settled(rig, controller)
    rig.patch("Tenant", "t1", {"spec": {"tier": "gold"}})  # the tier is not declared
    rig.create("Tenant", "t2", tenant_spec(key="k2"))
    until(lambda: rig.is_ready("Tenant", "t2"))
    until(lambda: "Stalled" in rig.conditions("Tenant", "t1"))
    stalled = rig.conditions("Tenant", "t1")["Stalled"]
    assert stalled["status"] == "True"
    assert "spec.tier" in stalled["message"]
    until(lambda: "Refused" in rig.events("t1"), controller.log)
    assert rig.events("t1")["Refused"]["type"] == "Warning"
    assert "its last good version stays in force" in stalled["message"]
    snapshot = rig.snapshot()
    assert snapshot is not None
    assert {tenant.name: tenant.tier for tenant in snapshot.tenants} == {"t0": "free", "t1": "free", "t2": "free"}
    rig.patch("Tenant", "t1", {"spec": {"tier": "free"}})
    until(lambda: rig.is_ready("Tenant", "t1"))
    assert "Stalled" not in rig.conditions("Tenant", "t1")


def test_unobeyed_policy_reports_it_until_it_is_obeyed(rig: Rig) -> None:
    populate(rig)
    controller = rig.controller(SCALING_INTERVAL_S="1")
    settled(rig, controller)
    model = service_spec()["predictor"]["model"]
    uncached = {**model, "args": ["--max-model-len=2048", "--no-enable-prefix-caching"]}
    rig.patch("InferenceService", POOL, {"spec": {"predictor": {"model": uncached}}})
    rig.create("RoutingPolicy", "default", {"pools": ["*"], "prefix": {"source": "events"}})
    until(lambda: "Obeyed" in rig.conditions("RoutingPolicy", "default"), controller.log)
    obeyed = rig.conditions("RoutingPolicy", "default")["Obeyed"]
    assert (obeyed["status"], obeyed["reason"]) == ("False", "PrefixCachingOff")
    assert obeyed["message"].startswith("spec.prefix.source: found events, but base-a is started with --no-enable")
    assert rig.is_ready("RoutingPolicy", "default"), "it is in force all the same"
    until(lambda: {"Accepted", "NotObeyed"} <= rig.events("default").keys(), controller.log)
    assert rig.events("default")["NotObeyed"]["message"].startswith("PrefixCachingOff: spec.prefix.source")
    counted = {"kind": "RoutingPolicy", "reason": "PrefixCachingOff"}
    assert controller.metric("policies_not_obeyed", **counted) == 1
    until(lambda: controller.metric("pending_status_writes") == 0)
    before = (rig.get("RoutingPolicy", "default") or {})["metadata"]["resourceVersion"]
    second = rig.controller(SCALING_INTERVAL_S="1")  # another leader finds the same and writes nothing
    assert controller.end(signal.SIGTERM) == 0
    until(lambda: second.metric("policies_not_obeyed", **counted) == 1, "it has looked")
    assert (rig.get("RoutingPolicy", "default") or {})["metadata"]["resourceVersion"] == before
    rig.patch("InferenceService", POOL, {"spec": {"predictor": {"model": model}}})
    until(lambda: rig.conditions("RoutingPolicy", "default")["Obeyed"]["status"] == "True", second.log)
    assert second.metric("policies_not_obeyed", **counted) == 0
    until(lambda: "ObeyedAgain" in rig.events("default"), second.log)
    assert rig.events("default")["NotObeyed"].get("series") is None, "a new leader repeats nothing"


def test_new_controller_restores_last_good_versions(rig: Rig) -> None:
    populate(rig)
    first = rig.controller()
    settled(rig, first)
    assert first.end(signal.SIGTERM) == 0
    rig.patch("Tenant", "t1", {"spec": {"tier": "gold"}})
    rig.create("Tenant", "t2", tenant_spec(key="k2"))
    rig.controller()
    until(lambda: rig.is_ready("Tenant", "t2"))
    snapshot = rig.snapshot()
    assert snapshot is not None
    assert {tenant.name: tenant.tier for tenant in snapshot.tenants} == {"t0": "free", "t1": "free", "t2": "free"}
    assert [key.key_id for key in snapshot.keys] == ["k0", "k1", "k2"]
    until(lambda: "Stalled" in rig.conditions("Tenant", "t1"))
    assert rig.conditions("Tenant", "t1")["Stalled"]["reason"] == "InvalidKeepsLastGood"


def test_newcomer_cannot_claim_a_key_of_another_tenant(rig: Rig) -> None:
    populate(rig)
    controller = rig.controller()
    settled(rig, controller)
    rig.create("Tenant", "a-thief", tenant_spec(key="k1"))
    until(lambda: "Stalled" in rig.conditions("Tenant", "a-thief"))
    snapshot = rig.snapshot()
    assert snapshot is not None
    assert {key.key_id: key.tenant for key in snapshot.keys} == {"k0": "t0", "k1": "t1"}
    assert rig.is_ready("Tenant", "t1")


@pytest.mark.soak
def test_a_key_revoked_beside_a_broken_tenant_stays_revoked(rig: Rig) -> None:
    """A controller that never read a valid Tenant keeps the key revoked over several publications."""
    populate(rig)
    first = rig.controller()
    settled(rig, first)
    for name in ("test", "kept"):
        made = registry(rig, "POST", "/v1/tenants/t1/keys", json={"id": name, "scopes": ["inference"]})
        assert made.status_code == 201, made.text
    until(lambda: {"test", "kept"} <= key_ids(rig), "both are published")
    rig.patch("Tenant", "t1", {"spec": {"tier": "nosuch"}})
    until(lambda: "Stalled" in rig.conditions("Tenant", "t1"))
    first.end()
    second = rig.controller()
    until(lambda: second.leads)
    assert registry(rig, "DELETE", "/v1/tenants/t1/keys/test").status_code == 204
    until(lambda: "test" not in key_ids(rig), "it is out of what is published")
    for number in (7, 8):
        rig.create("Tenant", f"t{number}", tenant_spec(key=f"k{number}"))
        until(lambda number=number: f"t{number}" in rig.tenants(), "another publication")  # type: ignore[misc]
        assert key_ids(rig) >= {"k0", "k1", "kept"}, "the broken Tenant's own, and what was not revoked"
        assert "test" not in key_ids(rig)


def key_ids(rig: Rig) -> set[str]:
    snapshot = rig.snapshot()
    return {str(key.key_id) for key in snapshot.keys} if snapshot is not None else set()


def test_used_tier_is_kept_and_model_is_deleted_once_unrouted(rig: Rig) -> None:
    populate(rig)
    controller = rig.controller()
    settled(rig, controller)
    assert (rig.get("QuotaPolicy", "free") or {})["metadata"]["finalizers"] == [FINALIZER]
    assert "finalizers" not in (rig.get("Tenant", "t0") or {})["metadata"]
    rig.delete("QuotaPolicy", "free")
    until(lambda: rig.conditions("QuotaPolicy", "free")["Ready"]["reason"] == "DeletionWaits")
    assert "tenants/t0" in rig.conditions("QuotaPolicy", "free")["Ready"]["message"]
    rig.delete("Model", "t0.m1")
    until(lambda: rig.get("Model", "t0.m1") is None, "the model's deletion ends")
    snapshot = rig.snapshot()
    assert snapshot is not None
    assert [model.id for model in snapshot.models] == ["t0/m0"]
    assert [quota.name for quota in snapshot.quotas] == ["free"]
    rig.create("QuotaPolicy", "gold", {"weight": 2.0, "limits": {}})
    for tenant in ("t0", "t1"):
        rig.patch("Tenant", tenant, {"spec": {"tier": "gold"}})
    until(lambda: rig.get("QuotaPolicy", "free") is None, "nobody needs it any more")
    until(lambda: [quota.name for quota in rig.snapshot().quotas] == ["gold"])  # type: ignore[union-attr]


def test_removal_as_documented_leaves_nothing_behind(rig: Rig) -> None:
    """The objects are deleted while the controller runs; afterwards no finalizer of ours is left."""
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text().partition("## 14. Remove it")[2]
    commands = [line for line in page.partition("```sh")[2].partition("```")[0].splitlines() if line[:7] == "kubectl"]
    first, *others = [shlex.split(line, comments=True) for line in commands]
    assert first[:5] == ["kubectl", "-n", "shoal", "delete", "shoal"]
    gateways, overlay = others[:2]
    assert gateways[:5] == ["kubectl", "-n", "shoal", "delete", "ksvc"], "a namespace would wait for their drain"
    assert (overlay[1], "-k" in overlay) == ("delete", True), "the controller goes only then"
    rig.create("RolloutPolicy", "careful", {"stages": [{"percent": 100}]})
    populate(rig)
    rig.patch("Model", "t0.m0", {"spec": {"rollout": "careful"}})
    controller = rig.controller()
    settled(rig, controller)
    kubeconfig = rig.space.server.kubeconfig(rig.space.server.admin_token, rig.folder / "kubectl")
    deleting = [str(Path(os.environ["KUBEBUILDER_ASSETS"]) / "kubectl"), "-n", rig.space.system, *first[3:]]
    done = subprocess.run(
        [*deleting, f"--kubeconfig={kubeconfig}"], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr + controller.log
    assert controller.end(signal.SIGTERM) == 0
    assert {kind: names(rig, kind) for kind in PLURALS} == {kind: [] for kind in PLURALS}


def test_suspended_controller_handles_a_request_once(rig: Rig) -> None:
    populate(rig)
    controller = rig.controller()
    settled(rig, controller)
    rig.annotate(suspend="true")
    until(lambda: controller.metric("suspended") == 1)
    rig.create("Tenant", "t2", tenant_spec(key="k2"))
    time.sleep(2)  # there is no event to wait for: the controller must do nothing
    assert "t2" not in rig.tenants()
    assert rig.conditions("Tenant", "t2") == {}
    rig.annotate(reconcile_requested_at="now-please")
    until(lambda: "t2" in rig.tenants(), "a request is heard although it is suspended")
    until(lambda: rig.record()["data"]["lastHandledReconcileAt"] == "now-please")
    rig.create("Tenant", "t3", tenant_spec(key="k3"))
    time.sleep(2)
    assert "t3" not in rig.tenants(), "one request is one pass"
    rig.annotate(suspend=None)
    until(lambda: "t3" in rig.tenants())


@pytest.mark.soak
def test_rollback_is_published_while_suspended(rig: Rig) -> None:
    """The controller starts after the rollout began and knows only the published snapshot and the rows."""
    stages = [{"percent": 50, "duration": "1h"}, {"percent": 100}]
    rig.create("RolloutPolicy", "careful", {"stages": stages})
    populate(rig, models=1)
    rig.patch("Model", "t0.m0", {"spec": {"rollout": "careful"}})
    first = rig.controller()
    settled(rig, first)
    spec = model_spec("t0/m0")
    newer = {"name": "v2", "artifact": "s3://shoal-models/t0/m0/v2", "digest": "sha256:" + "b" * 64}
    changed = {"versions": [*spec["versions"], newer], "channels": {"stable": "v2"}}
    rig.patch("Model", "t0.m0", {"spec": changed})
    until(lambda: bool(rollouts(rig)), f"a rollout begins; {first.log}")
    (row,) = rollouts(rig)
    loaded = {"event": {"is": "loaded"}, "lock_version": row["lock_version"]}
    path = f"/internal/v1/rollouts/{row['id']}/events"
    fence = {"x-shoal-fence": str(int(first.metric("term_token")))}
    assert registry(rig, "POST", path, json=loaded, headers=fence).status_code == 200
    until(lambda: [split.percent for split in bot(rig).splits] == [50], "half of it gets v2")
    rig.annotate(suspend="true")
    until(lambda: first.metric("suspended") == 1)
    assert first.end() != 0
    second = rig.controller()
    until(lambda: second.metric("suspended") == 1, f"another one leads; {second.log}")
    rig.create("Tenant", "t2", tenant_spec(key="k2"))
    assert registry(rig, "POST", f"/v1/rollouts/{row['id']}/rollback", json={}).status_code == 200
    until(lambda: not bot(rig).splits, f"nobody gets v2; {second.log}")
    assert bot(rig).channels["stable"] == "v1"
    assert "t2" not in rig.tenants(), "nothing else that was declared since"


def registry(rig: Rig, method: str, path: str, **options: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {TOKEN}", **options.pop("headers", {})}
    return httpx.request(method, rig.registry_url + path, headers=headers, timeout=30, **options)


def rollouts(rig: Rig) -> list[dict[str, Any]]:
    return list(registry(rig, "GET", "/v1/rollouts").json()["data"])


def bot(rig: Rig) -> ModelEntry:
    snapshot = rig.snapshot()
    assert snapshot is not None
    return next(model for model in snapshot.models if model.id == "t0/m0")


@pytest.mark.soak
def test_objects_report_the_registry_outage_until_it_returns(rig: Rig) -> None:
    populate(rig)
    controller = rig.controller(REGISTRY_URL="http://127.0.0.1:1")
    until(lambda: rig.conditions("Tenant", "t0").get("Reconciling", {}).get("reason") == "RegistryUnavailable")
    assert rig.conditions("Tenant", "t0")["Ready"]["status"] == "Unknown"
    until(lambda: "not published" in newest(rig)["message"], "the record says what it waits for")
    assert (newest(rig)["result"], rig.record()["data"]["lastAppliedRevision"]) == ("waiting", "")
    assert controller.end(signal.SIGTERM) == 0
    second = rig.controller()
    settled(rig, second)
    assert set(rig.conditions("Tenant", "t0")) == {"Ready"}
    until(lambda: newest(rig)["result"] == "applied")


def newest(rig: Rig) -> dict[str, Any]:
    """Return the newest revision in the record's history and its result."""
    history = json.loads(rig.record().get("data", {}).get("history", "[]"))
    return dict(history[0]) if history else {"revision": "", "result": "", "message": ""}


def test_each_pool_gets_a_budget_and_services_stay_untouched(rig: Rig) -> None:
    populate(rig)
    before = rig.get("InferenceService", POOL)
    controller = rig.controller()
    settled(rig, controller)
    until(rig.budgets, "the budget is there")
    budgets: list[dict[str, Any]] = (rig.get_path(rig.budgets_path) or {})["items"]
    assert [budget["spec"]["maxUnavailable"] for budget in budgets] == [1]
    assert rig.get("InferenceService", POOL) == before


def test_pool_with_an_invalid_service_keeps_its_budget(rig: Rig) -> None:
    """The pool's pods run regardless, so its budget stays."""
    populate(rig)
    spec = {"predictor": {"minReplicas": 1, "model": {"modelFormat": {"name": "vLLM"}, "args": ["--max-model-len=x"]}}}
    rig.create("InferenceService", "odd", spec, labels={"shoal.dev/pool": "odd"})
    controller = rig.controller()
    settled(rig, controller)
    until(lambda: rig.budgets() == [POOL, "odd"], controller.log)
    snapshot = rig.snapshot()
    assert snapshot is not None
    assert [pool.name for pool in snapshot.pools] == [POOL]
    rig.delete("InferenceService", "odd")
    until(lambda: rig.budgets() == [POOL])


@pytest.mark.soak
def test_the_api_server_restarts_in_between(rig: Rig) -> None:
    populate(rig)
    controller = rig.controller()
    settled(rig, controller)
    rig.space.server.stop(kill=True)
    time.sleep(1)
    rig.space.server.start_again()
    rig.create("Tenant", "t2", tenant_spec(key="k2"))
    until(lambda: rig.is_ready("Tenant", "t2"), f"it goes on: {controller.log}", timeout_s=120)
    assert controller.process.poll() is None


@pytest.mark.soak
def test_missing_artifact_is_reported_on_the_model_until_it_exists(rig: Rig) -> None:
    populate(rig)
    unpinned = model_spec("t0/m9")
    del unpinned["versions"][0]["digest"]
    rig.create("Model", "t0.m9", unpinned)
    controller = rig.controller()
    until(lambda: rig.conditions("Model", "t0.m9").get("Reconciling", {}).get("reason") == "ArtifactMissing")
    assert "s3://shoal-models/t0/m9/v1" in rig.conditions("Model", "t0.m9")["Ready"]["message"]
    until(lambda: rig.is_ready("Model", "t0.m0"))
    rig.patch("Model", "t0.m9", {"spec": {"versions": [{**unpinned["versions"][0], "digest": "sha256:" + "b" * 64}]}})
    until(lambda: rig.is_ready("Model", "t0.m9"), controller.log)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"INTERNAL_TOKEN_FILE": ""}, "internal_token_file"),
        ({"SOURCE": "git"}, "SHOAL_CONTROLLER_GIT_URL is required"),
        ({"KUBECONFIG": "/nonexistent/kubeconfig"}, "SHOAL_CONTROLLER_KUBECONFIG"),
        ({"LEASE_S": "5"}, "must grow"),
        ({"PORT": "99999"}, "port"),
    ],
)
def test_settings_error_has_a_readable_message(rig: Rig, changes: dict[str, str], complaint: str) -> None:
    controller = rig.controller(**changes)
    assert controller.process.wait(WAIT_S) == 1
    assert complaint in controller.log
    assert "Traceback" not in controller.log
