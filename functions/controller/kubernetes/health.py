"""Health of an object: Current, InProgress or Failed, with the reason. Pure.

KServe's own conditions are not enough. After a change of the spec, Ready can stay True from before.
`observedGeneration` is copied from the child, not observed (kserve #6081). Ready can be True while pods crash
(#1859). So the predictor's Deployment (in Knative mode, the Knative Service) is checked first. It must have observed
its latest generation, carry the wanted arguments, image, environment and storage URI, and have all replicas updated
and available. Only then do `Ready` and `modelStatus.transitionStatus` count.

Argument lists are compared by their end: KServe puts the runtime's arguments before ours. If our list is shortened at
the front, the old list still ends with the new one. Before such a change is written, the inventory stores a
`fingerprint` of the child's arguments. A child that still matches it is not Current. A service just written is not
Current.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from functions.controller.kubernetes.objects import (
    INFERENCE_SERVICE,
    Body,
    condition,
    is_being_deleted,
    list_at,
    mapping_at,
    value_at,
)
from functions.controller.kubernetes.webhook_rules import (
    AUTOSCALER_ANNOTATION,
    KNATIVE,
    MAIN_CONTAINER,
    mode_of,
)

FINGERPRINT_DIGITS = 16
STOP_ANNOTATION = "serving.kserve.io/stop"
State = Literal["Current", "InProgress", "Failed"]
STORAGE_ANNOTATION = "internal.serving.kserve.io/storage-initializer-sourceuri"  # on the pod template


@dataclass(frozen=True, slots=True)
class Health:
    state: State
    reason: str  # CamelCase, for machines
    message: str = ""

    @property
    def is_current(self) -> bool:
        return self.state == "Current"


CURRENT = Health("Current", "Current")
JUST_WRITTEN = Health("InProgress", "JustWritten", "written a moment ago; KServe has not acted on it yet")


def child_name(service: Mapping[str, Any]) -> str:
    """Return KServe's name of the predictor's Deployment or Knative Service."""
    name, predictor = service["metadata"]["name"], value_at(service, "spec", "predictor", "name")
    return f"{name}-{predictor}-predictor" if predictor else f"{name}-predictor"


def is_shortened(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return True if the change removes arguments at the front, and nothing else."""
    old, new = _wanted_args(live), _wanted_args(wanted)
    return len(new) < len(old) and _ends_with(old, new)


def carries_arguments(child: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Return True if the child has the service's arguments (it may have more at the front)."""
    return _ends_with(_child_args(child), _wanted_args(live))


def fingerprint(child: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return a fingerprint of the child's arguments and the `wanted` ones: a child that still has it has the old
    arguments."""
    text = json.dumps([_child_args(child), _wanted_args(wanted)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:FINGERPRINT_DIGITS]


def assess_health(live: Mapping[str, Any], child: Body | None, outdated: str = "") -> Health:
    """Return the health of a live object. `child` is the Deployment or Knative Service named by `child_name`, or
    None. A child with the fingerprint `outdated` is from before our last change."""
    if is_being_deleted(live):
        finalizers = ", ".join(map(str, list_at(live, "metadata", "finalizers"))) or "none"
        return Health("InProgress", "BeingDeleted", f"its finalizers: {finalizers}")
    if live.get("kind") != INFERENCE_SERVICE.kind:
        return CURRENT  # budgets have no readiness
    if _is_true(condition(live, "Stopped")) and _annotation(live, STOP_ANNOTATION).lower() == "true":
        return Health("Current", "Stopped", "stopped on purpose by serving.kserve.io/stop")
    if child is None:
        return _failed_model(live) or Health("InProgress", "NoChild", f"{child_name(live)} does not exist yet")
    if outdated and fingerprint(child, live) == outdated:
        return Health("InProgress", "OldTemplate", "the pod template has the arguments from before the last change")
    of_child = _knative(live, child) if mode_of(live) == KNATIVE else _deployment(live, child)
    return of_child or _reported_health(live) or CURRENT


def _deployment(live: Mapping[str, Any], deployment: Body) -> Health | None:
    """Return why the Deployment is not Current, or None if it is."""
    if _int(deployment, "status", "observedGeneration") < _int(deployment, "metadata", "generation"):
        return Health("InProgress", "NotObserved", "the Deployment's latest change is not acted on yet")
    if different := _template_difference(live, mapping_at(deployment, "spec", "template")):
        return _failed_model(live) or Health("InProgress", "OldTemplate", different)
    return _replicas(live, deployment)


def _replicas(live: Mapping[str, Any], deployment: Body) -> Health | None:
    replicas = value_at(deployment, "spec", "replicas")
    replicas = replicas if isinstance(replicas, int) else 1
    wanted = value_at(live, "spec", "predictor", "minReplicas")
    by_us = mapping_at(live, "metadata", "annotations").get(AUTOSCALER_ANNOTATION) == "none"
    if by_us and isinstance(wanted, int) and replicas != wanted:
        return Health("InProgress", "Resizing", f"the Deployment still asks for {replicas} of {wanted} replicas")
    if _reason(deployment, "Progressing", "False") == "ProgressDeadlineExceeded":
        return Health("Failed", "ProgressDeadlineExceeded", _message(deployment, "Progressing"))
    if _is_true(condition(deployment, "ReplicaFailure")):
        return Health("Failed", "ReplicaFailure", _message(deployment, "ReplicaFailure"))
    updated, available = _int(deployment, "status", "updatedReplicas"), _int(deployment, "status", "availableReplicas")
    if updated < replicas or available < replicas or _int(deployment, "status", "replicas") > updated:
        message = f"{updated} of {replicas} replicas are updated, {available} available"
        return _failed_model(live) or Health("InProgress", "RollingOut", message)
    return None


def _knative(live: Mapping[str, Any], service: Body) -> Health | None:
    if _int(service, "status", "observedGeneration") < _int(service, "metadata", "generation"):
        return Health("InProgress", "NotObserved", "the Knative Service's latest change is not acted on yet")
    if different := _template_difference(live, mapping_at(service, "spec", "template")):
        return _failed_model(live) or Health("InProgress", "OldTemplate", different)
    created, ready = (
        value_at(service, "status", "latestCreatedRevisionName"),
        value_at(service, "status", "latestReadyRevisionName"),
    )
    if _reason(service, "ConfigurationsReady", "False") == "RevisionFailed":
        return Health("Failed", "RevisionFailed", _message(service, "ConfigurationsReady"))
    if not created or created != ready:
        message = f"the latest revision is {created or 'not made'}, the latest ready one {ready or 'none'}"
        return _failed_model(live) or Health("InProgress", "RollingOut", message)
    if not _is_true(condition(service, "Ready")):
        return Health("InProgress", "NotReady", _message(service, "Ready"))
    return None


def _reported_health(live: Mapping[str, Any]) -> Health | None:
    """Return why the service itself reports that it is not Current, or None."""
    if failed := _failed_model(live):
        return failed
    transition = value_at(live, "status", "modelStatus", "transitionStatus")
    if transition != "UpToDate":
        return Health("InProgress", "ModelNotLoaded", f"transitionStatus is {transition or 'not set'}")
    if not _is_true(condition(live, "Ready")):
        return Health("InProgress", "NotReady", _message(live, "Ready"))
    return None


def _failed_model(live: Mapping[str, Any]) -> Health | None:
    transition = value_at(live, "status", "modelStatus", "transitionStatus")
    if transition not in ("InvalidSpec", "BlockedByFailedLoad"):
        return None
    failure = mapping_at(live, "status", "modelStatus", "lastFailureInfo")
    message = failure.get("message") or failure.get("reason") or "no reason is given"
    return Health("Failed", str(transition), str(message))


def _template_difference(live: Mapping[str, Any], template: Mapping[str, Any]) -> str:
    """Return how the pod template differs from what the service declares (arguments, image, environment, storage), or
    an empty text."""
    model = mapping_at(live, "spec", "predictor", "model")
    main = _main_container(template)
    if main is None:
        return f"the pod template has no container {MAIN_CONTAINER}"
    if not _ends_with(list_at(main, "args"), _wanted_args(live)):
        return "the pod template has other arguments than are wanted"
    image = model.get("image")
    if image and main.get("image") != image:
        return f"the pod template has the image {main.get('image')}, wanted is {image}"
    present = {each.get("name"): each.get("value") for each in list_at(main, "env") if isinstance(each, dict)}
    for variable in list_at(model, "env"):
        name, value = variable.get("name"), variable.get("value")
        if name not in present or (value is not None and present[name] != value):
            return f"the pod template has another value of {name} than is wanted"
    uri, there = model.get("storageUri"), mapping_at(template, "metadata", "annotations").get(STORAGE_ANNOTATION)
    if uri and there and there != uri:
        return f"the pod template loads {there}, wanted is {uri}"
    return ""


def _main_container(template: Mapping[str, Any]) -> dict[str, Any] | None:
    containers = [each for each in list_at(template, "spec", "containers") if isinstance(each, dict)]
    return next((each for each in containers if each.get("name") == MAIN_CONTAINER), None)


def _child_args(child: Mapping[str, Any]) -> list[Any]:
    return list_at(_main_container(mapping_at(child, "spec", "template")) or {}, "args")


def _wanted_args(service: Mapping[str, Any]) -> list[Any]:
    return list_at(service, "spec", "predictor", "model", "args")


def _annotation(live: Mapping[str, Any], name: str) -> str:
    return str(mapping_at(live, "metadata", "annotations").get(name, ""))


def _ends_with(args: list[Any], wanted: list[Any]) -> bool:
    """Return True if `args` ends with `wanted`. KServe fills in `{{.Name}}`, so that matches anything."""
    if len(args) < len(wanted):
        return False
    pairs = zip(args[len(args) - len(wanted) :], wanted, strict=True)
    return all(each == ours or "{{" in str(ours) for each, ours in pairs)


def _is_true(found: Mapping[str, Any] | None) -> bool:
    return found is not None and found.get("status") == "True"


def _reason(body: Mapping[str, Any], type_: str, status: str) -> str:
    found = condition(body, type_)
    return str(found.get("reason", "")) if found is not None and found.get("status") == status else ""


def _message(body: Mapping[str, Any], type_: str) -> str:
    found = condition(body, type_)
    if found is None:
        return f"there is no condition {type_} yet"
    words = [str(found[key]) for key in ("reason", "message") if found.get(key)]
    return ": ".join(words) or f"{type_} is {found.get('status')}"


def _int(body: Mapping[str, Any], *path: str) -> int:
    found = value_at(body, *path)
    return found if isinstance(found, int) else 0
