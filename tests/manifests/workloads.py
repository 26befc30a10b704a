"""What runs: every pod template of a rendering in one shape, whichever kind it comes from.

An InferenceService's pods are its ServingRuntime's containers with its own model merged into `kserve-container`, as
KServe does it: arguments and variables are added, resources replaced, labels and annotations copied to the pod. One
that names a runtime of the cluster is `foreign`: what its pods are made of is not ours to say.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.manifests.rendering import Document, Rendering, name_of

KSERVE_CONTAINER = "kserve-container"
MODELS_PATH = "/mnt/models"
_PROVISIONED = "kserve-provision-location"  # KServe's own volume, which it does not size
KUBERNETES_GRACE_S = 30  # where a pod says nothing


@dataclass(frozen=True)
class Workload:
    name: str  # for findings: "Deployment shoal/controller"
    namespace: str
    labels: dict[str, str]  # of its pods
    annotations: dict[str, str]
    pod: dict[str, Any]  # the pod's spec
    knative: bool
    foreign: bool = False
    once: bool = False  # a Job or a bare pod: nobody probes it, and nothing restarts it
    claims: frozenset[str] = frozenset()  # volumes of its own that each pod gets

    @property
    def containers(self) -> list[dict[str, Any]]:
        """Init containers too: what they may do and are given counts as much."""
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]

    @property
    def grace_s(self) -> int:
        """What the pod gets between its end's beginning and SIGKILL; Knative takes a request's longest time."""
        if self.knative:
            return int(self.pod["timeoutSeconds"])
        return int(self.pod.get("terminationGracePeriodSeconds", KUBERNETES_GRACE_S))


def workloads(rendering: Rendering) -> Iterator[Workload]:
    for document in rendering.of("Deployment", "StatefulSet", "Service"):
        if "template" in document["spec"]:
            template = document["spec"]["template"]
            metadata = template["metadata"]
            claims = document["spec"].get("volumeClaimTemplates", [])
            yield Workload(
                name=name_of(document),
                namespace=document["metadata"]["namespace"],
                labels=metadata.get("labels", {}),
                annotations=metadata.get("annotations", {}),
                pod=template["spec"],
                knative=document["kind"] == "Service",
                claims=frozenset(each["metadata"]["name"] for each in claims),
            )
    for document in rendering.of("Job", "Pod"):
        template = document["spec"]["template"] if document["kind"] == "Job" else document
        yield Workload(
            name=name_of(document),
            namespace=document["metadata"]["namespace"],
            labels=template["metadata"].get("labels", {}),
            annotations=template["metadata"].get("annotations", {}),
            pod=template["spec"],
            knative=False,
            once=True,
        )
    for document in rendering.of("InferenceService"):
        yield _pool(document, rendering)


def runtime_of(service: Document, rendering: Rendering) -> Document | None:
    """The namespace's ServingRuntime that KServe would choose, by format; None: one of the cluster's."""
    model = service["spec"]["predictor"]["model"]
    candidates = [
        runtime
        for runtime in rendering.of("ServingRuntime")
        if runtime["metadata"]["namespace"] == service["metadata"]["namespace"]
        and model.get("runtime") in (None, runtime["metadata"]["name"])
        and any(
            each["name"] == model["modelFormat"]["name"] and (each.get("autoSelect") or model.get("runtime"))
            for each in runtime["spec"]["supportedModelFormats"]
        )
    ]
    return candidates[0] if candidates else None


def initializers(rendering: Rendering) -> list[dict[str, Any]]:
    """Containers that KServe puts before an engine whose storageUri asks for them."""
    return [document["spec"]["container"] for document in rendering.of("ClusterStorageContainer")]


def _initializer(uri: str, rendering: Rendering) -> dict[str, Any] | None:
    """What KServe puts before the engine for this URI: the ClusterStorageContainer's over its own default."""
    for document in rendering.of("ClusterStorageContainer"):
        if any(uri.startswith(each["prefix"]) for each in document["spec"]["supportedUriFormats"]):
            found: dict[str, Any] = copy.deepcopy(document["spec"]["container"])
            found["args"] = [uri, MODELS_PATH]
            found["volumeMounts"] = [*found["volumeMounts"], {"name": _PROVISIONED, "mountPath": MODELS_PATH}]
            return found
    return None


def _pool(service: Document, rendering: Rendering) -> Workload:
    predictor: dict[str, Any] = copy.deepcopy(service["spec"]["predictor"])
    model = predictor.pop("model")
    runtime = runtime_of(service, rendering)
    unknown: dict[str, Any] = {"containers": [{"name": KSERVE_CONTAINER}]}
    pod: dict[str, Any] = copy.deepcopy(runtime["spec"]) if runtime is not None else unknown
    (engine,) = [each for each in pod["containers"] if each["name"] == KSERVE_CONTAINER]
    for key in ("args", "env", "volumeMounts"):
        engine[key] = [*engine.get(key, []), *model.get(key, [])]
    engine |= {key: model[key] for key in ("resources", "image", "command") if key in model}
    pod["volumes"] = [*pod.get("volumes", []), *predictor.pop("volumes", [])]
    initializer = _initializer(model.get("storageUri", ""), rendering)
    if initializer is not None:
        pod["initContainers"] = [*pod.get("initContainers", []), initializer]
        pod["volumes"] = [*pod["volumes"], {"name": _PROVISIONED, "emptyDir": {"sizeLimit": "1Mi"}}]
        engine["volumeMounts"] = [*engine["volumeMounts"], {"name": _PROVISIONED, "mountPath": MODELS_PATH}]
    metadata = service["metadata"]
    return Workload(
        name=name_of(service),
        namespace=metadata["namespace"],
        labels={
            **(runtime or {}).get("spec", {}).get("labels", {}),
            **metadata.get("labels", {}),
            "serving.kserve.io/inferenceservice": metadata["name"],
        },
        annotations=metadata.get("annotations", {}) | predictor.get("annotations", {}),
        pod={**pod, **predictor},
        knative=metadata.get("annotations", {}).get("serving.kserve.io/deploymentMode") == "Knative",
        foreign=runtime is None and "runtime" in model,
    )
