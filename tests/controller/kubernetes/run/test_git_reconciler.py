"""The git source on a cluster: a push becomes services, budgets and the snapshot; a bad push changes nothing."""

import hashlib
import hmac
import json
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from functions.controller.kubernetes.run.writes import FINALIZER
from tests.controller.kubernetes.run.rig import ControllerProcess, Rig, model_spec, service_spec, tenant_spec
from tests.controller.kubernetes.run.test_process import newest
from tests.controller.kubernetes.run.test_rights import BASE, GIT_SOURCE, grant
from tests.controller.kubernetes.run.test_selection import written
from tests.controller.kubernetes.run.waiting import until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]


class Repository:
    """A remote that people push to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._git("init", "--quiet", "--initial-branch=main")

    @property
    def url(self) -> str:
        return f"file://{self.folder}"

    def push(self, message: str, **files: Any) -> str:
        """Write files of one object each, or remove those given as `None`; return the commit."""
        for name, it in files.items():
            file = self.folder / f"{name}.yaml"
            if it is None:
                file.unlink()
            else:
                file.write_text(it if isinstance(it, str) else json.dumps(it))
        self._git("add", "--all")
        author = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.com")
        self._git(*author, "commit", "--quiet", "--allow-empty", f"--message={message}")
        return self._git("rev-parse", "HEAD").strip()

    def _git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=self.folder, check=True, capture_output=True, text=True, timeout=60
        ).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "remote")


def first_push(repository: Repository) -> str:
    return repository.push(
        "a fleet",
        pool_a=written("InferenceService", "pool-a", service_spec()),
        pool_b=written("InferenceService", "pool-b", service_spec()),
        pool_c=written("InferenceService", "pool-c", service_spec()),
        tier=written("QuotaPolicy", "free", {"weight": 1.0}),
        acme=written("Tenant", "acme", tenant_spec(key="ci", models=("acme/*",))),
        bot=written("Model", "acme.bot", {**model_spec("acme/bot"), "base": "pool-a"}),
    )


def start(rig: Rig, repository: Repository, **changes: Any) -> ControllerProcess:
    folder = str(rig.folder / f"clone-{len(rig.controllers)}")
    settings = {"SOURCE": "git", "GIT_URL": repository.url, "GIT_DIR": folder, "GIT_POLL_S": "0.3"}
    return rig.controller(**{**settings, **changes})


def revision(rig: Rig) -> str:
    snapshot = rig.snapshot()
    return snapshot.revision if snapshot is not None else ""


def applied(rig: Rig) -> str:
    return str(rig.record().get("data", {}).get("lastAppliedRevision", ""))


def services(rig: Rig) -> dict[str, Any]:
    found = rig.get_path(rig.path("InferenceService")) or {"items": []}
    return {item["metadata"]["name"]: item for item in found["items"]}


def test_pushes_are_applied_with_the_rights_of_the_manifests(rig: Rig, repository: Repository) -> None:
    token = grant(rig, BASE / "rbac.yaml", GIT_SOURCE / "rbac.yaml")
    first = first_push(repository)
    controller = start(rig, repository, token=token)
    until(lambda: applied(rig) == revision(rig) == f"main@{first}", "the first push is applied")
    assert set(services(rig)) == {"pool-a", "pool-b", "pool-c"}
    assert rig.budgets() == ["pool-a", "pool-b", "pool-c"]
    assert rig.tenants() == ["acme"]
    bigger = repository.push("more replicas", pool_a=written("InferenceService", "pool-a", service_spec(replicas=3)))
    until(lambda: applied(rig) == f"main@{bigger}")
    assert services(rig)["pool-a"]["spec"]["predictor"]["minReplicas"] == 3
    assert controller.end(signal.SIGTERM) == 0
    assert "forbidden" not in controller.log


def test_a_bad_push_changes_nothing_and_drift_is_still_repaired(rig: Rig, repository: Repository) -> None:
    good = first_push(repository)
    controller = start(rig, repository, RESYNC_S="1")
    until(lambda: applied(rig) == f"main@{good}")
    bad = repository.push("a mistake", acme=written("Tenant", "acme", tenant_spec(tier="gold")), pool_b=None)
    until(lambda: "problem(s)" in controller.log, "it is told")
    assert "spec.tier" in controller.log
    rig.delete("InferenceService", "pool-b")
    until(lambda: "pool-b" in services(rig), "drift from the last good revision is repaired")
    assert revision(rig) == f"main@{good}"
    record = rig.record()["data"]
    assert (record["lastAttemptedRevision"], record["lastAppliedRevision"]) == (f"main@{bad}", f"main@{good}")
    newest = json.loads(record["history"])[0]
    assert (newest["revision"], newest["result"]) == (f"main@{bad}", "refused")
    assert "acme.yaml" in newest["message"]
    assert "spec.tier" in newest["message"]
    assert controller.metric("refused_objects") == 1
    until(lambda: "RevisionRefused" in rig.events("shoal-controller"), controller.log)
    event = rig.events("shoal-controller")["RevisionRefused"]
    assert (event["type"], event.get("series")) == ("Warning", None)
    assert f"main@{bad} has 1 problem(s): acme.yaml" in event["message"]
    assert rig.events("shoal-controller")["RevisionApplied"]["message"] == f"main@{good} is in force"
    sent = controller.metric("events_total", outcome="sent")
    version = rig.record()["metadata"]["resourceVersion"]
    passes = controller.metric("reconciles_total", result="refused")
    until(lambda: controller.metric("reconciles_total", result="refused") >= passes + 3)
    assert rig.record()["metadata"]["resourceVersion"] == version, "a bad commit that stays costs no write"
    assert controller.metric("events_total", outcome="sent") == sent, "and no Event"
    mended = repository.push("mended", acme=written("Tenant", "acme", tenant_spec(key="ci")))
    until(lambda: revision(rig) == f"main@{mended}")
    until(lambda: controller.metric("refused_objects") == 0)
    until(lambda: f"main@{mended}" in rig.events("shoal-controller")["RevisionApplied"]["message"], controller.log)


def test_leftover_custom_resources_can_be_deleted(rig: Rig, repository: Repository) -> None:
    """The controller has only the rights of the manifests; finalizers of others stay."""
    token = grant(rig, BASE / "rbac.yaml", GIT_SOURCE / "rbac.yaml")
    rig.create("Model", "acme.old", model_spec("acme/old"), finalizers=[FINALIZER])
    rig.create("QuotaPolicy", "gold", {"weight": 2.0}, finalizers=[FINALIZER, "example.com/theirs"])
    rig.delete("Model", "acme.old")
    first = first_push(repository)
    controller = start(rig, repository, token=token)
    until(lambda: applied(rig) == f"main@{first}", controller.log)
    until(lambda: rig.get("Model", "acme.old") is None, "the deletion ends")
    assert (rig.get("QuotaPolicy", "gold") or {})["metadata"]["finalizers"] == ["example.com/theirs"]
    rig.patch("QuotaPolicy", "gold", {"metadata": {"finalizers": None}})


def test_reconcile_request_fetches_at_once(rig: Rig, repository: Repository) -> None:
    """The next poll is far beyond this test's time limit."""
    first = first_push(repository)
    start(rig, repository, GIT_POLL_S="3600")
    until(lambda: applied(rig) == revision(rig) == f"main@{first}")
    later = repository.push("later", tier=written("QuotaPolicy", "free", {"weight": 2.0}))
    rig.annotate(reconcile_requested_at="now-please")
    until(lambda: rig.record()["data"]["lastHandledReconcileAt"] == "now-please")
    assert revision(rig) == f"main@{later}", "handled is what was fetched and put in force"


SECRET = "the webhook secret of a git server"
_WEBHOOK_PORT = re.compile(r"git servers tell of pushes on port (\d+)")


def with_webhook(rig: Rig, repository: Repository) -> ControllerProcess:
    file = rig.folder / "webhook-secret"
    file.write_text(SECRET + "\n")
    return start(rig, repository, GIT_POLL_S="3600", WEBHOOK_PORT="0", WEBHOOK_SECRET_FILE=str(file))


def deliver(controller: ControllerProcess, secret: str = SECRET) -> int:
    """Deliver a push notice as GitHub does; return the status of the answer."""
    until(lambda: _WEBHOOK_PORT.search(controller.log), "it says its port")
    port = _WEBHOOK_PORT.findall(controller.log)[-1]
    body = b'{"ref": "refs/heads/main"}'
    signature = f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"
    headers = {"x-github-event": "push", "x-hub-signature-256": signature}
    return httpx.post(f"http://127.0.0.1:{port}/hooks/git", content=body, headers=headers, timeout=30).status_code


def test_webhook_at_leader_or_standby_fetches_at_once(rig: Rig, repository: Repository) -> None:
    """The next poll is far beyond this test's time limit."""
    first = first_push(repository)
    leader = with_webhook(rig, repository)
    until(lambda: applied(rig) == revision(rig) == f"main@{first}")
    second = repository.push("second", tier=written("QuotaPolicy", "free", {"weight": 2.0}))
    assert deliver(leader, "somebody else's secret") == 401
    assert deliver(leader) == 202
    until(lambda: revision(rig) == f"main@{second}", leader.log)
    standby = with_webhook(rig, repository)
    until(lambda: _WEBHOOK_PORT.search(standby.log))
    assert not standby.leads
    third = repository.push("third", tier=written("QuotaPolicy", "free", {"weight": 3.0}))
    assert deliver(standby) == 202
    until(lambda: revision(rig) == f"main@{third}", leader.log + standby.log)
    until(lambda: rig.record()["data"]["lastHandledReconcileAt"].endswith(" push"), "by the record")
    assert leader.metric("webhook_deliveries_total", result="taken") == 1
    assert leader.metric("webhook_deliveries_total", result="unsigned") == 1
    rig.annotate(suspend="true")
    until(lambda: leader.metric("suspended") == 1)
    repository.push("fourth", tier=written("QuotaPolicy", "free", {"weight": 4.0}))
    handled = rig.record()["data"]["lastHandledReconcileAt"]
    assert deliver(leader) == deliver(standby) == 202
    until(lambda: standby.metric("webhook_deliveries_total", result="taken") == 2)
    time.sleep(1.5)  # longer than CONTROL_POLL_S and the fetch
    assert rig.record()["data"]["lastHandledReconcileAt"] == handled
    assert revision(rig) == f"main@{third}", "what is suspended stays so"


def test_a_webhook_without_a_secret_does_not_start(rig: Rig, repository: Repository) -> None:
    first_push(repository)
    (rig.folder / "short").write_text("short")
    for changes, said in (
        ({"WEBHOOK_SECRET_FILE": str(rig.folder / "short")}, "has no webhook secret of at least 16 characters"),
        ({"WEBHOOK_SECRET_FILE": ""}, "SHOAL_CONTROLLER_WEBHOOK_SECRET_FILE is required"),
    ):
        controller = start(rig, repository, WEBHOOK_PORT="0", **changes)
        assert controller.process.wait(60) == 1
        assert said in controller.log


def test_unpublished_revision_is_not_applied(rig: Rig, repository: Repository) -> None:
    """The objects are written, but policies and models are not in force. The record says so once, with the reason."""
    pushed = first_push(repository)
    blind = start(rig, repository, REGISTRY_URL="http://127.0.0.1:1")
    until(lambda: "pool-c" in services(rig), blind.log)
    until(lambda: "127.0.0.1:1" in newest(rig)["message"], "the record says why")
    assert "not published" in newest(rig)["message"]
    assert (newest(rig)["result"], applied(rig)) == ("waiting", "")
    record = rig.record()["metadata"]["resourceVersion"]
    passes = blind.metric("reconciles_total", result="passing")
    until(lambda: blind.metric("reconciles_total", result="passing") >= passes + 2)
    assert rig.record()["metadata"]["resourceVersion"] == record, "what stays so costs no write"
    assert blind.end(signal.SIGTERM) == 0
    start(rig, repository)
    until(lambda: applied(rig) == revision(rig) == f"main@{pushed}")
    assert newest(rig)["result"] == "applied"


@pytest.mark.soak
def test_pool_is_deleted_after_the_snapshot_stops_routing_to_it(rig: Rig, repository: Repository) -> None:
    good = first_push(repository)
    controller = start(rig, repository)
    until(lambda: applied(rig) == f"main@{good}")
    controller.end(signal.SIGTERM)
    removed = repository.push("one pool less", pool_c=None)
    blind = start(rig, repository, REGISTRY_URL="http://127.0.0.1:1")
    until(lambda: newest(rig)["revision"] == f"main@{removed}", blind.log)
    until(lambda: blind.metric("reconciles_total", result="passing") >= 2)
    assert "deletionTimestamp" not in services(rig)["pool-c"]["metadata"], "nobody could be told: it stays"
    assert (newest(rig)["result"], applied(rig)) == ("waiting", f"main@{good}")
    assert blind.end(signal.SIGTERM) == 0
    start(rig, repository)
    until(
        lambda: "deletionTimestamp" in services(rig).get("pool-c", {"metadata": {"deletionTimestamp": 1}})["metadata"]
    )
    assert revision(rig) == f"main@{removed}"
    snapshot = rig.snapshot()
    assert snapshot is not None
    assert [pool.name for pool in snapshot.pools] == ["pool-a", "pool-b"]


def test_revision_the_api_server_refuses_is_not_published(rig: Rig, repository: Repository) -> None:
    """The revision is valid for shoal but not for KServe: a dry run comes before any write or publication. The previous
    revision stays in force and its drift is repaired.
    """
    good = first_push(repository)
    controller = start(rig, repository, RESYNC_S="1")
    until(lambda: applied(rig) == f"main@{good}")
    spec = service_spec()
    spec["predictor"]["timeout"] = "soon"
    repository.push("odd", pool_a=written("InferenceService", "pool-a", spec), tier=written("QuotaPolicy", "free", {}))
    until(lambda: "timeout" in controller.log, "the refusal is told")
    assert revision(rig) == f"main@{good}"
    assert services(rig)["pool-b"]["metadata"]["generation"] == 1
    rig.delete("InferenceService", "pool-b")
    until(lambda: "pool-b" in services(rig), controller.log)
    until(lambda: applied(rig) == revision(rig) == f"main@{good}")
    passes = controller.metric("reconciles_total", result="refused")
    until(lambda: controller.metric("reconciles_total", result="refused") >= passes + 1)
    record = rig.record()["metadata"]["resourceVersion"]
    until(lambda: controller.metric("reconciles_total", result="refused") >= passes + 4)
    assert rig.record()["metadata"]["resourceVersion"] == record, "a refusal that stays costs no write"


@pytest.mark.soak
def test_standby_with_a_stale_fetch_does_not_roll_the_fleet_back(rig: Rig, repository: Repository) -> None:
    first = first_push(repository)
    leader = start(rig, repository)
    until(lambda: applied(rig) == f"main@{first}")
    mirror = repository.folder.with_name("mirror")
    shutil.copytree(repository.folder, mirror)
    standby = start(rig, repository, GIT_URL=f"file://{mirror}")
    until(lambda: httpx.get(f"{standby.url}/readyz", timeout=30).status_code == 200)
    mirror.rename(mirror.with_name("hidden"))
    until(lambda: "cannot be followed" in standby.log)
    second = repository.push("more replicas", pool_a=written("InferenceService", "pool-a", service_spec(replicas=3)))
    until(lambda: applied(rig) == revision(rig) == f"main@{second}")
    assert leader.end(signal.SIGTERM) == 0
    until(lambda: "newer than what was fetched" in standby.log, standby.log)
    assert applied(rig) == revision(rig) == f"main@{second}"
    assert services(rig)["pool-a"]["spec"]["predictor"]["minReplicas"] == 3
    third = repository.push("one more", pool_a=written("InferenceService", "pool-a", service_spec(replicas=4)))
    shutil.copytree(repository.folder, mirror)
    until(lambda: applied(rig) == revision(rig) == f"main@{third}", standby.log)


@pytest.mark.soak
def test_unreachable_remote_keeps_the_fleet_applied(rig: Rig, repository: Repository) -> None:
    good = first_push(repository)
    controller = start(rig, repository)
    until(lambda: applied(rig) == f"main@{good}")
    hidden = repository.folder.rename(repository.folder.with_name("hidden"))
    until(lambda: "cannot be followed" in controller.log)
    rig.delete("InferenceService", "pool-b")
    rig.annotate(reconcile_requested_at="now")
    until(lambda: "pool-b" in services(rig))
    hidden.rename(repository.folder)
    later = repository.push("later", tier=written("QuotaPolicy", "free", {"weight": 2.0}))
    until(lambda: revision(rig) == f"main@{later}")
