"""Pod templates of a rendering in one shape, whichever kind they are from.

An InferenceService's pods are its ServingRuntime's containers with its own model merged into `kserve-container`, as
KServe does it: arguments and variables are added, resources replaced, labels and annotations copied to the pod. A
service on a runtime of the cluster is `foreign`: its pods are not shoal's to check.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.manifests.rendering import Document, Rendering, name_of

KSERVE_CONTAINER = "kserve-container"
MODELS_PATH = "/mnt/models"
_PROVISIONED = "kserve-provision-location"  # KServe's own volume, which it does not size
KUBERNETES_GRACE_S = 30  # Kubernetes's default


@dataclass(frozen=True)
class Workload:
    name: str  # for findings: "Deployment shoal/controller"
    namespace: str
    labels: dict[str, str]  # pod labels
    annotations: dict[str, str]
    pod: dict[str, Any]  # the pod's spec
    knative: bool
    foreign: bool = False
    once: bool = False  # a Job or a bare pod: not probed and not restarted
    claims: frozenset[str] = frozenset()  # names of the volume claim templates

    @property
    def containers(self) -> list[dict[str, Any]]:
        """All containers, including init containers."""
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]

    @property
    def grace_s(self) -> int:
        """Seconds between the start of the pod's termination and SIGKILL; Knative uses its request timeout."""
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
    """Return the namespace's ServingRuntime that KServe would choose by format; None for one of the cluster's."""
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
    """Return the storage initializers that KServe can add before an engine."""
    return [document["spec"]["container"] for document in rendering.of("ClusterStorageContainer")]


def _initializer(uri: str, rendering: Rendering) -> dict[str, Any] | None:
    """Return the storage initializer for this URI; a ClusterStorageContainer overrides KServe's default."""
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
