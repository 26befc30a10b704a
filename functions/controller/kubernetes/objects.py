"""Identity of Kubernetes objects, names of the controller on a cluster, and access to fields of objects.

An object's identity leaves its API version out: a PodDisruptionBudget seen as policy/v1beta1 and as policy/v1 is one
object. So an upgrade of the cluster neither prunes nor creates anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Names of the controller on a cluster, and annotations that control it.


FIELD_MANAGER = "shoal-controller"
AUTOSCALER_MANAGER = "shoal-autoscaler"  # owns minReplicas of pools with an AutoscalingPolicy

# Annotations in an InferenceService's YAML; read, never sent. PRUNE_ANNOTATION also works on live objects.
WAVE_ANNOTATION = "shoal.dev/wave"
PRUNE_ANNOTATION = "shoal.dev/prune"
PRUNE_DISABLED = "disabled"

# Annotation of the record: the revision whose large prune a person allows.
CONSENT_ANNOTATION = "shoal.dev/allow-prune"


Body = dict[str, Any]  # an object as decoded JSON


@dataclass(frozen=True, slots=True)
class Kind:
    api_version: str  # `group/version`, or `version` in the core group
    kind: str

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    def __str__(self) -> str:
        return f"{self.api_version} {self.kind}"


@dataclass(frozen=True, slots=True, order=True)
class ObjectRef:
    group: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"


INFERENCE_SERVICE = Kind("serving.kserve.io/v1beta1", "InferenceService")
BUDGET = Kind("policy/v1", "PodDisruptionBudget")
BUDGET_OF_OLD_CLUSTERS = Kind("policy/v1beta1", "PodDisruptionBudget")
DEPLOYMENT = Kind("apps/v1", "Deployment")
KNATIVE_SERVICE = Kind("serving.knative.dev/v1", "Service")
CONFIG_MAP = Kind("v1", "ConfigMap")


def kind_of(body: Mapping[str, Any]) -> Kind:
    return Kind(body["apiVersion"], body["kind"])


def ref_of(body: Mapping[str, Any]) -> ObjectRef:
    metadata = body["metadata"]
    return ObjectRef(kind_of(body).group, body["kind"], metadata.get("namespace", ""), metadata["name"])


def uid_of(body: Mapping[str, Any]) -> str:
    return str(body["metadata"].get("uid", ""))


def version_of(body: Mapping[str, Any]) -> str:
    """Return the resourceVersion, which is opaque text; "" if there is none."""
    return str(body["metadata"].get("resourceVersion", ""))


def is_being_deleted(body: Mapping[str, Any]) -> bool:
    return bool(body["metadata"].get("deletionTimestamp"))


def value_at(body: Mapping[str, Any], *path: str) -> Any:
    """Return the value below nested mappings, or None if any of them is missing or no mapping."""
    node: Any = body
    for part in path:
        node = node.get(part) if isinstance(node, dict) else None
    return node


def mapping_at(body: Mapping[str, Any], *path: str) -> dict[str, Any]:
    found = value_at(body, *path)
    return found if isinstance(found, dict) else {}


def list_at(body: Mapping[str, Any], *path: str) -> list[Any]:
    found = value_at(body, *path)
    return found if isinstance(found, list) else []


def condition(body: Mapping[str, Any], type_: str) -> Mapping[str, Any] | None:
    """Return the object's status condition of that type, or None if it has none."""
    conditions = [each for each in list_at(body, "status", "conditions") if isinstance(each, dict)]
    return next((each for each in conditions if each.get("type") == type_), None)
