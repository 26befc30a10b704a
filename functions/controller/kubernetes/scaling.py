"""Write a pool's replica count on a cluster. The deployment mode decides the field; a pod template is never changed.

    mode, autoscalerClass    written                                              effect
    Standard, none           apply InferenceService spec.predictor.minReplicas    Deployment.replicas, no restart
    Standard, hpa or keda    the same: the minimum of KServe's HPA, ScaledObject  their autoscaler decides above it
    Standard, external       patch deployments/<predictor>/scale                  KServe does not change replicas
    Knative                  apply min-scale of the revisions that take traffic   no new revision, no new pods

In Knative mode minReplicas would become an annotation of the pod template: a new revision, and a second set of
accelerators. A revision's own annotations reach its PodAutoscaler (Knative 1.21 and later).

The field manager is `shoal-autoscaler`. If another manager *applies* a different number (Flux, Argo CD), the live
number is applied, so that both own the field and nothing moves when the other manager releases it. Until then the
conflict is reported and nothing else is written. A manager that merely *updated* the field is overruled. Every apply
carries the uid, so that a deleted object is not created again.

Source: KServe 0.20 and Knative 1.21; `ownership` describes the handover of the field.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.errors import Conflict
from functions.controller.kubernetes.health import child_name
from functions.controller.kubernetes.objects import (
    AUTOSCALER_MANAGER,
    DEPLOYMENT,
    INFERENCE_SERVICE,
    Body,
    Kind,
    list_at,
    mapping_at,
    uid_of,
    value_at,
)
from functions.controller.kubernetes.ownership import FIELD, Policy, declares, owners
from functions.controller.kubernetes.webhook_rules import AUTOSCALER_ANNOTATION, KNATIVE, mode_of

REVISION = Kind("serving.knative.dev/v1", "Revision")
MIN_SCALE = "autoscaling.knative.dev/min-scale"

_NEVER_ZERO = (
    f"an HPA keeps at least one replica; for a pool that scales to zero, annotate its InferenceService with "
    f"{AUTOSCALER_ANNOTATION}: none"
)

Way = Literal["minReplicas", "scale", "revision"]


@dataclass(frozen=True, slots=True)
class ReplicaWrite:
    replicas: int  # requested from the cluster now
    changed: bool = False
    contested: str = ""  # why the wanted number is not written, and what to do
    pending: str = ""  # why it cannot be written yet (temporary)


def write_method_of(live: Mapping[str, Any]) -> Way:
    """Return how this service's number of replicas is written: in its Knative revision, in the Deployment's scale, or
    as its minReplicas."""
    if mode_of(live) == KNATIVE:
        return "revision"
    return "scale" if _class_of(live) == "external" else "minReplicas"


def clamp_replicas(live: Mapping[str, Any], replicas: int) -> int:
    """Limit the number to what KServe's webhooks accept: at most maxReplicas, and at least one with an HPA."""
    most = value_at(live, "spec", "predictor", "maxReplicas")
    if isinstance(most, int) and most > 0:
        replicas = min(replicas, most)
    is_hpa = mode_of(live) != KNATIVE and _class_of(live) == "hpa"
    return max(1, replicas) if is_hpa else replicas


def zero_refusal_reason(live: Mapping[str, Any], replicas: int) -> str:
    """Return why a service that should have no replica keeps one, and what to do; otherwise an empty text."""
    return _NEVER_ZERO if clamp_replicas(live, replicas) > replicas == 0 else ""


def requested_replicas(api: KubeApi, live: Mapping[str, Any]) -> int | None:
    """Return the number of replicas that the cluster is asked for, or None if it is unknown. KServe takes a missing
    minReplicas as 1."""
    way = write_method_of(live)
    if way == "minReplicas":
        number = value_at(live, *FIELD)
        number = 1 if number is None else number
    elif way == "scale":
        deployment = api.get(DEPLOYMENT, live["metadata"]["namespace"], child_name(live))
        number = value_at(deployment, "spec", "replicas") if deployment is not None else None
    else:
        floors = [_floor(revision) for revision in _revisions(api, live)]
        number = max((floor for floor in floors if floor is not None), default=None)
    return number if isinstance(number, int) else None


def write_replicas(
    api: KubeApi, live: Mapping[str, Any], replicas: int, policy: Policy, *, over: frozenset[str] = frozenset()
) -> ReplicaWrite:
    """Write the number of replicas, limited by `clamp_replicas`. Blocks; raises Retryable, Terminal and LeadershipLost
    like `api`. `over` are managers that may be overruled although they still declare the number."""
    wanted = clamp_replicas(live, replicas)
    match write_method_of(live):
        case "minReplicas":
            written = _write_field(api, live, wanted, policy, over)
            return replace(written, contested=written.contested or zero_refusal_reason(live, replicas))
        case "scale":
            return _write_scale(api, live, wanted)
        case "revision":
            return _write_floors(api, live, wanted)


def _write_field(
    api: KubeApi, live: Mapping[str, Any], wanted: int, policy: Policy, over: frozenset[str]
) -> ReplicaWrite:
    number = value_at(live, *FIELD)
    if number == wanted and _owns_field(live):
        return ReplicaWrite(wanted)
    try:
        api.server_side_apply(_field_body(live, wanted), manager=AUTOSCALER_MANAGER)
    except Conflict as conflict:
        declared = [each for each in conflict.conflicts if declares(live, each.manager) and each.manager not in over]
        if declared and policy == "report":
            return _share(api, live, wanted, ", ".join(map(str, declared)))
        api.server_side_apply(_field_body(live, wanted), manager=AUTOSCALER_MANAGER, force=True)
    return ReplicaWrite(wanted, changed=number != wanted)


def _share(api: KubeApi, live: Mapping[str, Any], wanted: int, holders: str) -> ReplicaWrite:
    """Own the field, at its live number, with the managers that declare it: when they release it, nothing moves. Return
    the live number and why `wanted` is not written."""
    number = value_at(live, *FIELD)
    if not _owns_field(live):
        api.server_side_apply(_field_body(live, number), manager=AUTOSCALER_MANAGER)
    name = live["metadata"]["name"]
    why = f"{holders}, but {wanted} replicas are wanted; leave minReplicas out of what delivers {name}"
    return ReplicaWrite(number, contested=why)


def _owns_field(live: Mapping[str, Any]) -> bool:
    """Return True if the autoscaler applies the field. A manager that forces the field removes it from our entry."""
    return (AUTOSCALER_MANAGER, "Apply") in owners(live, *FIELD)


def _field_body(live: Mapping[str, Any], replicas: int) -> Body:
    return {
        "apiVersion": INFERENCE_SERVICE.api_version,
        "kind": INFERENCE_SERVICE.kind,
        "metadata": _named(live),
        "spec": {"predictor": {"minReplicas": replicas}},
    }


def _write_scale(api: KubeApi, live: Mapping[str, Any], wanted: int) -> ReplicaWrite:
    name, namespace = child_name(live), live["metadata"]["namespace"]
    deployment = api.get(DEPLOYMENT, namespace, name)
    if deployment is None:
        return ReplicaWrite(0, pending=f"the Deployment {name} does not exist yet")
    if value_at(deployment, "spec", "replicas") == wanted:
        return ReplicaWrite(wanted)
    api.scale(DEPLOYMENT, namespace, name, wanted, manager=AUTOSCALER_MANAGER)
    return ReplicaWrite(wanted, changed=True)


def _write_floors(api: KubeApi, live: Mapping[str, Any], wanted: int) -> ReplicaWrite:
    revisions = _revisions(api, live)
    if not revisions:
        return ReplicaWrite(0, pending="no revision takes traffic yet")
    outdated = [revision for revision in revisions if _floor(revision) != wanted]
    for revision in outdated:
        metadata = {**_named(revision), "annotations": {MIN_SCALE: str(wanted)}}
        body = {"apiVersion": REVISION.api_version, "kind": REVISION.kind, "metadata": metadata}
        api.server_side_apply(body, manager=AUTOSCALER_MANAGER, force=True)  # Knative set it at the revision's creation
    return ReplicaWrite(wanted, changed=bool(outdated))


def _revisions(api: KubeApi, live: Mapping[str, Any]) -> list[Body]:
    """Return the revisions that receive traffic, or before any does, the latest ready one."""
    predictor = mapping_at(live, "status", "components", "predictor")
    routed = [each for each in list_at(predictor, "traffic") if isinstance(each, dict) and each.get("percent")]
    names = {str(each["revisionName"]) for each in routed if each.get("revisionName")}
    if not names and predictor.get("latestReadyRevision"):
        names = {str(predictor["latestReadyRevision"])}
    found = [api.get(REVISION, live["metadata"]["namespace"], name) for name in sorted(names)]
    return [revision for revision in found if revision is not None]


def _floor(revision: Mapping[str, Any]) -> int | None:
    text = str(mapping_at(revision, "metadata", "annotations").get(MIN_SCALE, ""))
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


def _class_of(live: Mapping[str, Any]) -> str:
    return str(mapping_at(live, "metadata", "annotations").get(AUTOSCALER_ANNOTATION) or "hpa")


def _named(live: Mapping[str, Any]) -> Body:
    metadata = live["metadata"]
    return {"name": metadata["name"], "namespace": metadata["namespace"], "uid": uid_of(live)}
