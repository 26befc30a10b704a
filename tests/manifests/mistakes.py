"""Mistakes, each one change of a valid rendering, and functions that find the place to change."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.manifests.checks.schemas import Check
from tests.manifests.rendering import Document, Rendering

AGENT = 1  # the second of the ServingRuntime's containers

Change = Callable[[Rendering], object]  # the result is ignored


@dataclass(frozen=True)
class Mistake:
    what: str
    check: Check
    make: Change
    told: str  # a fragment of the finding


def gateway(rendering: Rendering) -> dict[str, Any]:
    pod: dict[str, Any] = rendering.one("Service", "gateway", group="serving.knative.dev")["spec"]["template"]["spec"]
    return pod


def registry(rendering: Rendering) -> dict[str, Any]:
    pod: dict[str, Any] = rendering.one("Service", "registry", group="serving.knative.dev")["spec"]["template"]["spec"]
    return pod


def controller(rendering: Rendering) -> dict[str, Any]:
    pod: dict[str, Any] = rendering.one("Deployment", "controller")["spec"]["template"]["spec"]
    return pod


def runtime(rendering: Rendering) -> dict[str, Any]:
    spec: dict[str, Any] = rendering.one("ServingRuntime", "shoal-vllm")["spec"]
    return spec


def pool(rendering: Rendering) -> dict[str, Any]:
    predictor: dict[str, Any] = rendering.one("InferenceService", "smollm2-135m")["spec"]["predictor"]
    return predictor


def annotations(rendering: Rendering) -> dict[str, str]:
    found: dict[str, str] = rendering.one("InferenceService", "smollm2-135m")["metadata"]["annotations"]
    return found


def container(pod: dict[str, Any], index: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = pod["containers"][index]
    return found


def variable(each: dict[str, Any], name: str) -> dict[str, Any]:
    (entry,) = [entry for entry in each["env"] if entry["name"] == name]
    found: dict[str, Any] = entry
    return found


def drop_variable(each: dict[str, Any], name: str) -> None:
    each["env"].remove(variable(each, name))


def policy(rendering: Rendering, name: str, namespace: str = "shoal") -> dict[str, Any]:
    spec: dict[str, Any] = rendering.one("NetworkPolicy", name, namespace)["spec"]
    return spec


def role(rendering: Rendering, namespace: str) -> Document:
    return rendering.one("Role", "controller", namespace)


def named_rule(rendering: Rendering, resource: str) -> dict[str, Any]:
    """Return the controller's rule with `resourceNames` for that resource, in its own namespace."""
    rules = role(rendering, "shoal")["rules"]
    found: dict[str, Any]
    (found,) = [rule for rule in rules if rule["resources"] == [resource] and "resourceNames" in rule]
    return found


def remove(rendering: Rendering, kind: str, name: str, namespace: str | None = None) -> None:
    rendering.documents.remove(rendering.one(kind, name, namespace))
