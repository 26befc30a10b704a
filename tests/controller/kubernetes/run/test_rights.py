"""The controller with the manifests' ServiceAccount: it can do all of its work, and nothing else."""

import re
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controller.kubernetes.fixtures import create
from tests.controller.kubernetes.run.rig import ROOT, Rig, populate, settled, tenant_spec
from tests.controller.kubernetes.run.waiting import until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]

BASE = ROOT / "manifests" / "base"
GIT_SOURCE = ROOT / "manifests" / "components" / "git-source"
_RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces"


def documents(*files: Path) -> list[dict[str, Any]]:
    return [each for file in files for each in yaml.safe_load_all(file.read_text()) if each]


def grant(rig: Rig, *files: Path) -> str:
    """Install the ServiceAccount and its rights in this test's namespaces; return its token."""
    names = {"shoal": rig.space.system, "shoal-models": rig.space.models}
    for each in documents(BASE / "service-accounts.yaml", *files):
        for subject in each.get("subjects", []):
            subject["namespace"] = names[subject["namespace"]]
        if each["kind"].startswith("Cluster"):
            _grant_cluster_wide(rig, each)
            continue
        namespace = names[each["metadata"]["namespace"]]
        each["metadata"]["namespace"] = namespace
        if each["kind"] == "ServiceAccount":
            if each["metadata"]["name"] == "controller":
                create(rig.space.client, f"/api/v1/namespaces/{namespace}/serviceaccounts", each)
        else:
            create(rig.space.client, f"{_RBAC}/{namespace}/{each['kind'].lower()}s", each)
    return rig.space.server.token_of(rig.space.system, "controller")


def _grant_cluster_wide(rig: Rig, document: dict[str, Any]) -> None:
    """Install the rights under a name of this test's own, because the server is shared."""
    for named in (document["metadata"], document.get("roleRef", {})):
        if named:
            named["name"] += f"-{rig.space.system}"
    root = _RBAC.removesuffix("/namespaces")
    create(rig.space.client, f"{root}/{document['kind'].lower()}s", document)


def may(rig: Rig, token: str, verb: str, resource: str, namespace: str, name: str = "") -> bool:
    group, _, plural = resource.rpartition("/") if "." in resource else ("", "", resource)
    plural, _, subresource = plural.partition(":")
    attributes = {
        "namespace": namespace,
        "verb": verb,
        "group": group,
        "resource": plural,
        "subresource": subresource,
        "name": name,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = rig.space.server.client(token).request(
        "post", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=review, serializer=lambda _c, data: data
    )
    return bool(answer["status"]["allowed"])


def test_manifest_rights_suffice_for_all_work(rig: Rig) -> None:
    token = grant(rig, BASE / "rbac.yaml")
    populate(rig)
    first = rig.controller(token=token)
    settled(rig, first)
    rig.annotate(reconcile_requested_at="now")
    until(lambda: rig.record()["data"]["lastHandledReconcileAt"] == "now", first.log)
    rig.delete("Model", "t0.m1")
    until(lambda: rig.get("Model", "t0.m1") is None, first.log)
    rig.patch("Tenant", "t1", {"spec": {"tier": "gold"}})
    until(lambda: "Stalled" in rig.conditions("Tenant", "t1"))
    rig.delete("InferenceService", "base-a")
    until(lambda: not rig.budgets(), "the budget is pruned")
    assert first.end(signal.SIGTERM) == 0
    second = rig.controller(token=token)
    rig.create("Tenant", "t9", tenant_spec(key="k9"))
    until(lambda: rig.is_ready("Tenant", "t9"), second.log)
    until(lambda: second.metric("events_total", outcome="sent") > 0)
    assert second.metric("events_total", outcome="failed") == 0
    assert not re.search(r"forbidden|cannot \w+ resource", first.log + second.log)


@pytest.mark.parametrize("with_git", [False, True])
def test_manifest_rights_allow_nothing_else(rig: Rig, with_git: bool) -> None:
    token = grant(rig, BASE / "rbac.yaml", *([GIT_SOURCE / "rbac.yaml"] if with_git else []))
    system, models = rig.space.system, rig.space.models
    forbidden = [
        *((verb, "shoal.dev/tenants", system) for verb in ("create", "update", "patch", "delete")),
        *((verb, "shoal.dev/models", system) for verb in ("create", "update", "delete", "deletecollection")),
        ("delete", "shoal.dev/quotapolicies", system),
        ("update", "serving.kserve.io/inferenceservices", models),
        ("patch", "serving.kserve.io/inferenceservices:status", models),
        ("get", "secrets", system),
        ("list", "secrets", models),
        ("list", "configmaps", system),
        ("get", "configmaps", system, "shoal-installation"),
        ("patch", "configmaps", system, "shoal-installation"),
        ("delete", "configmaps", system, "shoal-controller"),
        ("update", "coordination.k8s.io/leases", system, "another"),
        ("delete", "coordination.k8s.io/leases", system, "shoal-controller"),
        *((verb, "events.k8s.io/events", where) for verb in ("list", "update", "delete") for where in (system, models)),
        ("create", "events.k8s.io/events", "default"),
        ("create", "events", system),
        ("create", "pods", models),
        ("create", "pods:exec", models),
        ("get", "shoal.dev/tenants", "default"),
        *((verb, "nodes", "") for verb in ("create", "update", "delete", "deletecollection")),
        ("patch", "nodes:status", ""),
        *((verb, "pods", models) for verb in ("update", "patch", "deletecollection", "list")),
        *((verb, "pods", system) for verb in ("get", "delete")),
        ("create", "rbac.authorization.k8s.io/rolebindings", system),
        ("impersonate", "serviceaccounts", system),
    ]
    if not with_git:
        forbidden += [(verb, "serving.kserve.io/inferenceservices", models) for verb in ("create", "delete")]
    until(lambda: may(rig, token, "patch", "shoal.dev/tenants:status", system), "the question is asked rightly")
    until(lambda: may(rig, token, "patch", "configmaps", system, "shoal-controller"))
    until(lambda: may(rig, token, "patch", "serving.kserve.io/inferenceservices", models), "of the other namespace too")
    assert [each for each in forbidden if may(rig, token, *each)] == []
