"""Every state of KServe and its children: the status they report, and the true health."""

import copy
from typing import Any

import pytest

from functions.controller.kubernetes.health import Health, assess_health, child_name, fingerprint, is_shortened
from functions.controller.kubernetes.objects import Body
from functions.controller.kubernetes.observation import Children

READY = [{"type": "Ready", "status": "True"}]


def service(*, mode: str = "Standard", **changes: Any) -> Body:
    body: Body = {
        "kind": "InferenceService",
        "metadata": {
            "name": "a",
            "namespace": "m",
            "generation": 2,
            "annotations": {
                "serving.kserve.io/deploymentMode": mode,
                "serving.kserve.io/autoscalerClass": "none",
            },
        },
        "spec": {
            "predictor": {
                "minReplicas": 2,
                "model": {
                    "args": ["--max-model-len=2048", "--name={{.Name}}"],
                    "image": "vllm:2",
                    "env": [{"name": "X", "value": "1"}, {"name": "FROM", "valueFrom": {}}],
                    "storageUri": "s3://m/v2",
                },
            }
        },
        "status": {"conditions": READY, "modelStatus": {"transitionStatus": "UpToDate"}, "deploymentMode": mode},
    }
    return changed(body, changes)


def template() -> Body:
    container = {
        "name": "kserve-container",
        "image": "vllm:2",
        "args": ["--port=8080", "--max-model-len=2048", "--name=a"],
        "env": [{"name": "X", "value": "1"}, {"name": "FROM", "valueFrom": {}}, {"name": "RUNTIMES", "value": "2"}],
    }
    return {
        "metadata": {"annotations": {"internal.serving.kserve.io/storage-initializer-sourceuri": "s3://m/v2"}},
        "spec": {"containers": [{"name": "agent"}, container]},
    }


def deployment(**changes: Any) -> Body:
    body: Body = {
        "metadata": {"name": "a-predictor", "namespace": "m", "generation": 3},
        "spec": {"replicas": 2, "template": template()},
        "status": {
            "observedGeneration": 3,
            "replicas": 2,
            "updatedReplicas": 2,
            "availableReplicas": 2,
            "conditions": [{"type": "Progressing", "status": "True"}],
        },
    }
    return changed(body, changes)


def knative(**changes: Any) -> Body:
    body: Body = {
        "metadata": {"name": "a-predictor", "namespace": "m", "generation": 3},
        "spec": {"template": template()},
        "status": {
            "observedGeneration": 3,
            "latestCreatedRevisionName": "a-2",
            "latestReadyRevisionName": "a-2",
            "conditions": READY,
        },
    }
    return changed(body, changes)


def changed(body: Body, changes: dict[str, Any]) -> Body:
    """Return a copy with changes: `status__replicas=3` sets a value, None removes it."""
    body = copy.deepcopy(body)
    for path, value in changes.items():
        *parents, last = path.split("__")
        node = body
        for part in parents:
            node = node[part]
        if value is None:
            node.pop(last, None)
        else:
            node[last] = value
    return body


def with_container(child: Body, **values: Any) -> Body:
    child = copy.deepcopy(child)
    child["spec"]["template"]["spec"]["containers"][1].update(values)
    return child


def conditions(type_: str, status: str, reason: str = "", message: str = "") -> list[dict[str, str]]:
    return [{"type": type_, "status": status, "reason": reason, "message": message}]


def stopped(asked: str) -> Body:
    live = service(status__conditions=conditions("Stopped", "True"))
    live["metadata"]["annotations"]["serving.kserve.io/stop"] = asked
    return live


NOT_READY = conditions("Ready", "False", "Waiting", "for pods")
DEADLINE = conditions("Progressing", "False", "ProgressDeadlineExceeded", "timed out")
OLD_URI = {"annotations": {"internal.serving.kserve.io/storage-initializer-sourceuri": "s3://m/v1"}}

STANDARD = [
    ("all is well", service(), deployment(), "Current", "Current"),
    ("nothing there yet", service(), None, "InProgress", "NoChild"),
    ("stale Ready: the Deployment has the old arguments", service(), with_container(deployment(), args=["--old"]),
     "InProgress", "OldTemplate"),
    ("stale Ready: an argument was added", service(),
     with_container(deployment(), args=["--port=8080", "--name=a"]), "InProgress", "OldTemplate"),
    ("stale Ready: the old image", service(), with_container(deployment(), image="vllm:1"),
     "InProgress", "OldTemplate"),
    ("stale Ready: an old value in the environment", service(),
     with_container(deployment(), env=[{"name": "X", "value": "0"}, {"name": "FROM"}]), "InProgress", "OldTemplate"),
    ("stale Ready: a variable is missing", service(), with_container(deployment(), env=[]),
     "InProgress", "OldTemplate"),
    ("stale Ready: the old weights", service(), deployment(spec__template__metadata=OLD_URI),
     "InProgress", "OldTemplate"),
    ("no annotation says what is loaded", service(), deployment(spec__template__metadata={}), "Current", "Current"),
    ("the Deployment is not observed", service(), deployment(metadata__generation=4), "InProgress", "NotObserved"),
    ("observedGeneration of the service lies", service(status__observedGeneration=99),
     deployment(status__observedGeneration=2), "InProgress", "NotObserved"),
    ("the old number of replicas", service(spec__predictor__minReplicas=5), deployment(),
     "InProgress", "Resizing"),
    ("an HPA sets the number", service(spec__predictor__minReplicas=5,
     metadata__annotations={"serving.kserve.io/autoscalerClass": "hpa"}), deployment(), "Current", "Current"),
    ("half of the pods are updated", service(), deployment(status__updatedReplicas=1), "InProgress", "RollingOut"),
    ("Ready while pods crash", service(), deployment(status__availableReplicas=1), "InProgress", "RollingOut"),
    ("old pods are still there", service(), deployment(status__replicas=3), "InProgress", "RollingOut"),
    ("no status at all", service(), deployment(status={"observedGeneration": 3}), "InProgress", "RollingOut"),
    ("the rollout hangs", service(), deployment(status__conditions=DEADLINE), "Failed", "ProgressDeadlineExceeded"),
    ("pods cannot be made", service(), deployment(status__conditions=conditions("ReplicaFailure", "True")),
     "Failed", "ReplicaFailure"),
    ("the model does not load", service(status__modelStatus={"transitionStatus": "BlockedByFailedLoad",
     "lastFailureInfo": {"message": "out of memory"}}), deployment(status__availableReplicas=0),
     "Failed", "BlockedByFailedLoad"),
    ("the spec is refused", service(status__modelStatus={"transitionStatus": "InvalidSpec"}), None,
     "Failed", "InvalidSpec"),
    ("the model is loading", service(status__modelStatus={"transitionStatus": "InProgress"}), deployment(),
     "InProgress", "ModelNotLoaded"),
    ("no word of the model", service(status__modelStatus=None), deployment(), "InProgress", "ModelNotLoaded"),
    ("not Ready", service(status__conditions=NOT_READY), deployment(), "InProgress", "NotReady"),
    ("no conditions", service(status__conditions=None), deployment(), "InProgress", "NotReady"),
    ("scaled to nothing", service(spec__predictor__minReplicas=0), deployment(spec__replicas=0,
     status={"observedGeneration": 3}), "Current", "Current"),
    ("stopped on purpose", stopped("true"), None, "Current", "Stopped"),
    ("stale Stopped: it is to run again", stopped("false"), None, "InProgress", "NoChild"),
    ("being deleted", service(metadata__deletionTimestamp="now", metadata__finalizers=["x"]), deployment(),
     "InProgress", "BeingDeleted"),
]  # fmt: skip

KNATIVE = [
    ("all is well", knative(), "Current", "Current"),
    ("a revision is coming", knative(status__latestCreatedRevisionName="a-3"), "InProgress", "RollingOut"),
    ("no revision yet", knative(status__latestCreatedRevisionName=None), "InProgress", "RollingOut"),
    ("the revision failed", knative(status__conditions=conditions("ConfigurationsReady", "False", "RevisionFailed")),
     "Failed", "RevisionFailed"),
    ("not observed", knative(metadata__generation=4), "InProgress", "NotObserved"),
    ("old arguments", with_container(knative(), args=["--old"]), "InProgress", "OldTemplate"),
    ("not Ready", knative(status__conditions=NOT_READY), "InProgress", "NotReady"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("live", "child", "state", "reason"), [row[1:] for row in STANDARD], ids=[r[0] for r in STANDARD]
)
def test_health_in_standard_mode(live: Body, child: Body | None, state: str, reason: str) -> None:
    health = assess_health(live, child)
    assert (health.state, health.reason) == (state, reason)


@pytest.mark.parametrize(("child", "state", "reason"), [row[1:] for row in KNATIVE], ids=[row[0] for row in KNATIVE])
def test_health_in_knative_mode(child: Body, state: str, reason: str) -> None:
    health = assess_health(service(mode="Knative"), child)
    assert (health.state, health.reason) == (state, reason)


@pytest.mark.parametrize(("mode", "child"), [("Standard", deployment()), ("Knative", knative())])
def test_removed_leading_arguments_are_detected_from_the_old_ones(mode: str, child: Body) -> None:
    before, after = service(mode=mode), service(mode=mode)
    after["spec"]["predictor"]["model"]["args"] = ["--name={{.Name}}"]
    assert is_shortened(before, after)
    assert not is_shortened(after, before)
    assert assess_health(after, child).is_current, "by its end alone it cannot be told"
    outdated = fingerprint(child, after)
    assert assess_health(after, child, outdated).reason == "OldTemplate"
    assert assess_health(before, child, outdated).is_current, "wanted again, the same arguments are right"
    assert assess_health(after, with_container(child, args=["--port=8080", "--name=a"]), outdated).is_current


def test_each_deployment_mode_has_its_child_kind() -> None:
    children = Children({("m", "a-predictor"): deployment()}, {("m", "a-predictor"): knative(metadata__generation=4)})
    assert children.health_of(service()).reason == "Current"
    assert children.health_of(service(mode="Knative")).reason == "NotObserved"
    assert children.health_of(None).reason == "Missing"


def test_health_has_a_readable_reason() -> None:
    failed = {"transitionStatus": "BlockedByFailedLoad", "lastFailureInfo": {"message": "out of memory"}}
    assert assess_health(service(status__modelStatus=failed), None).message == "out of memory"
    assert "1 of 2 replicas are updated" in assess_health(service(), deployment(status__updatedReplicas=1)).message


def test_existing_budget_is_current() -> None:
    assert assess_health({"kind": "PodDisruptionBudget", "metadata": {}}, None) == Health("Current", "Current")


def test_child_name_includes_the_predictor_suffix() -> None:
    assert child_name(service()) == "a-predictor"
    assert child_name(service(spec__predictor__name="v4")) == "a-v4-predictor"
