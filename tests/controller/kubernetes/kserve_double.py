"""Plays KServe on the real API server: Deployments for InferenceServices, status for both, and KServe's known lies.

    kserve = KServe(client, "shoal-models-1")
    kserve.step()        # one pass of its controllers; nothing happens in between
    kserve.settle()      # passes until nothing changes any more

Each pass does for each service what one reconcile of KServe 0.20 does, in its order: the status is made from the
child as it was before this pass, so that after a change of the spec Ready stays True for a while, and
observedGeneration is the child's. Then the Deployment is written. Then, one pass later, its replicas come up.
`Script` slows that down or breaks it.

The double is also the cluster's missing garbage collector: what is deleted in the foreground loses that finalizer
once its Deployment is gone.
"""

import copy
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import NotFoundError

from functions.controller.kubernetes.health import STORAGE_ANNOTATION, child_name
from functions.controller.kubernetes.objects import Body
from tests.controller.kubernetes.api_server import budgets_path

MANAGER = "kserve-controller-manager"
FOREGROUND = "foregroundDeletion"
RUNTIME_ARGS = ["--model=/mnt/models", "--port=8080"]
_SETTLE_PASSES = 50


@dataclass
class Script:
    """Behaviour of one service. Delays are in passes, not seconds: tests run passes one by one."""

    passes_until_seen: int = 0  # after a change of the spec, until the Deployment follows
    passes_until_available: int = 1  # after a change of the Deployment
    crashes: bool = False  # the pods never become available; Ready stays as it was
    refuses: str = ""  # transitionStatus of a model that cannot be loaded, such as InvalidSpec
    transition_stuck: bool = False  # transitionStatus stays InProgress although the pods are available


@dataclass
class _Seen:
    generation: int = 0
    waits: int = 0
    coming_up: int = 0


@dataclass
class KServe:
    client: DynamicClient
    namespace: str
    scripts: dict[str, Script] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)  # changes of the pod template, by service
    _seen: dict[str, _Seen] = field(default_factory=dict)

    def step(self) -> bool:
        """Run one pass over all services; return whether anything was written."""
        wrote = False
        for service in self._items(self._services()):
            wrote |= self._collect(service) if self._is_going(service) else self._pass(service)
        for budget in self._items(self._budgets):
            if self._is_going(budget):
                wrote |= self._let_go(self._budgets, budget)
        return wrote

    def settle(self) -> None:
        for _ in range(_SETTLE_PASSES):
            if not self.step():
                return
        raise AssertionError(f"KServe's double was still busy after {_SETTLE_PASSES} passes")

    def run(self, until: Any, every_s: float = 0.05) -> None:
        """Run passes until the event is set, for tests in which the controller runs by itself."""
        while not until.is_set():
            self.step()
            time.sleep(every_s)

    def deployment(self, service: str) -> Body | None:
        return self._get(f"{self._deployments()}/{service}-predictor")

    # -- one service -------------------------------------------------------------------------------------------------

    def _pass(self, service: Body) -> bool:
        name = service["metadata"]["name"]
        script = self.scripts.get(name, Script())
        seen = self._seen.setdefault(name, _Seen())
        before = self._get(f"{self._deployments()}/{child_name(service)}")
        wrote = self._write_status(service, before, script)
        if seen.generation != service["metadata"]["generation"]:
            if seen.waits < script.passes_until_seen:
                seen.waits += 1
                return True
            seen.generation, seen.waits = service["metadata"]["generation"], 0
        if script.refuses:
            return wrote
        wrote |= self._write_deployment(service, before, script, seen)
        return self._come_up(service, script, seen) or wrote

    def _write_deployment(self, service: Body, before: Body | None, script: Script, seen: _Seen) -> bool:
        wanted = _deployment(service)
        if before is None:
            self._request("post", self._deployments(), body=wanted)
            seen.coming_up = script.passes_until_available
            return True
        spec = copy.deepcopy(before["spec"])
        changed_template = _differs(before["spec"]["template"], wanted["spec"]["template"])
        if changed_template:
            spec["template"] = wanted["spec"]["template"]
            self.restarts[service["metadata"]["name"]] = self.restarts.get(service["metadata"]["name"], 0) + 1
        if spec["replicas"] != wanted["spec"]["replicas"]:
            spec["replicas"] = wanted["spec"]["replicas"]
        elif not changed_template:
            return False
        self._request("put", f"{self._deployments()}/{child_name(service)}", body={**before, "spec": spec})
        seen.coming_up = script.passes_until_available
        return True

    def _come_up(self, service: Body, script: Script, seen: _Seen) -> bool:
        """Act as the Deployment controller and the pods."""
        deployment = self._get(f"{self._deployments()}/{child_name(service)}")
        if deployment is None or script.crashes:
            return False
        if seen.coming_up > 0:
            seen.coming_up -= 1
            return True
        replicas = deployment["spec"]["replicas"]
        counted = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
        status = {
            "observedGeneration": deployment["metadata"]["generation"],
            **(dict.fromkeys(counted, replicas) if replicas else {}),  # the API server omits zeros
            "conditions": [{"type": "Available", "status": "True"}, {"type": "Progressing", "status": "True"}],
        }
        if not _differs(deployment.get("status", {}), status):
            return False
        self._request(
            "put", f"{self._deployments()}/{child_name(service)}/status", body={**deployment, "status": status}
        )
        return True

    def _write_status(self, service: Body, child: Body | None, script: Script) -> bool:
        """Write the status from the child of the previous pass: after a change of the spec, that of the old spec."""
        said = child.get("status", {}).get("conditions", ()) if child is not None else ()
        # false without conditions
        available = any(each["type"] == "Available" and each["status"] == "True" for each in said)
        ready = "True" if available else "False"
        transition = script.refuses or ("UpToDate" if available and not script.transition_stuck else "InProgress")
        status = {
            "observedGeneration": child["metadata"]["generation"] if child else 0,
            "deploymentMode": "Standard",
            "conditions": [{"type": "PredictorReady", "status": ready}, {"type": "Ready", "status": ready}],
            "modelStatus": {"transitionStatus": transition},
        }
        if not _differs(service.get("status", {}), status):
            return False
        path = f"{self._services()}/{service['metadata']['name']}/status"
        self._request("put", path, body={**service, "status": {**service.get("status", {}), **status}})
        return True

    # -- deletion ----------------------------------------------------------------------------------------------------

    def _collect(self, service: Body) -> bool:
        """Remove dependents first, then the finalizer of foreground deletion. Other finalizers stay."""
        child = f"{self._deployments()}/{child_name(service)}"
        if self._get(child) is not None:
            self._request("delete", child)
            return True
        return self._let_go(self._services(), service)

    def _let_go(self, collection: str, item: Body) -> bool:
        finalizers = item["metadata"].get("finalizers", [])
        if FOREGROUND not in finalizers:
            return False
        kept = [each for each in finalizers if each != FOREGROUND]
        self._request(
            "patch",
            f"{collection}/{item['metadata']['name']}",
            body={"metadata": {"finalizers": kept}},
            content_type="application/merge-patch+json",
        )
        return True

    @staticmethod
    def _is_going(item: Body) -> bool:
        return bool(item["metadata"].get("deletionTimestamp"))

    # -- requests ----------------------------------------------------------------------------------------------------

    def _services(self) -> str:
        return f"/apis/serving.kserve.io/v1beta1/namespaces/{self.namespace}/inferenceservices"

    def _deployments(self) -> str:
        return f"/apis/apps/v1/namespaces/{self.namespace}/deployments"

    @cached_property
    def _budgets(self) -> str:
        return budgets_path(self.client, self.namespace)

    def _items(self, collection: str) -> list[Body]:
        answer = self._get(collection)
        return answer["items"] if answer is not None else []

    def _get(self, path: str) -> Body | None:
        try:
            return self._request("get", path)
        except NotFoundError:
            return None

    def _request(self, method: str, path: str, **parameters: Any) -> Body:
        if method != "get":
            parameters["field_manager"] = MANAGER
        answer: Body = self.client.request(method, path, serializer=lambda _client, data: data, **parameters)
        return answer


def _deployment(service: Body) -> Body:
    """Return the Deployment that KServe makes of a service; its pods get the service's labels and annotations."""
    metadata, predictor = service["metadata"], service["spec"]["predictor"]
    model = predictor["model"]
    labels = {**metadata.get("labels", {}), "serving.kserve.io/inferenceservice": metadata["name"]}
    selector = {"app": f"isvc.{child_name(service)}"}
    annotations = dict(metadata.get("annotations", {}))
    if model.get("storageUri"):
        annotations[STORAGE_ANNOTATION] = model["storageUri"]
    container = {
        "name": "kserve-container",
        "image": model.get("image", "registry.example/vllm:1"),
        "args": [*RUNTIME_ARGS, *model.get("args", [])],
        "env": model.get("env", []),
        "resources": model.get("resources", {}),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": child_name(service), "namespace": metadata["namespace"], "labels": labels},
        "spec": {
            "replicas": predictor.get("minReplicas", 1),
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": {**labels, **selector}, "annotations": annotations},
                "spec": {"containers": [container]},
            },
        },
    }


def _differs(there: Any, wanted: Any) -> bool:
    """Return whether a wanted value is missing.

    Fields that the server added are no difference, except for the length of a list. Maps of labels and annotations are
    compared whole.
    """
    if isinstance(wanted, dict):
        if not isinstance(there, dict):
            return bool(wanted)
        whole = [key for key in ("labels", "annotations") if there.get(key, {}) != wanted.get(key, {})]
        return bool(whole) or any(_differs(there.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        there = there or []
        return len(there) != len(wanted) or any(_differs(a, b) for a, b in zip(there, wanted, strict=True))
    return bool(there != wanted)
