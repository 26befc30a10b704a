"""Live state of a cluster: all objects of the managed kinds and namespaces, and services' children.

Objects are listed, not read one by one: one list for each kind and namespace, however many pools there are. Lists
also show objects that carry our field manager without being in the inventory.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.errors import KindMissing
from functions.controller.kubernetes.health import (
    CURRENT,
    Health,
    assess_health,
    carries_arguments,
    child_name,
    fingerprint,
)
from functions.controller.kubernetes.objects import (
    DEPLOYMENT,
    INFERENCE_SERVICE,
    KNATIVE_SERVICE,
    Body,
    Kind,
    ObjectRef,
    ref_of,
)
from functions.controller.kubernetes.webhook_rules import KNATIVE, mode_of

ObservedKind = tuple[Kind, str]  # a kind in a namespace


def observe(api: KubeApi, places: Iterable[ObservedKind]) -> dict[ObjectRef, Body]:
    """Return all objects of these kinds and namespaces; a kind that is not served has none."""
    found: dict[ObjectRef, Body] = {}
    for kind, namespace in sorted(set(places), key=str):
        found.update((ref_of(item), item) for item in _items(api, kind, namespace))
    return found


@dataclass(frozen=True, slots=True)
class Children:
    """Deployments and Knative Services that KServe made for the services, by namespace and name."""

    of_deployments: dict[tuple[str, str], Body]
    of_knative: dict[tuple[str, str], Body]

    def health_of(self, live: Body | None, outdated: str = "") -> Health:
        """Return the object's health; None means that it does not exist yet. `outdated` is the fingerprint of arguments
        from before our last change."""
        if live is None:
            return Health("InProgress", "Missing", "does not exist yet")
        if live.get("kind") != INFERENCE_SERVICE.kind:
            return assess_health(live, None) if live["metadata"].get("deletionTimestamp") else CURRENT
        return assess_health(live, self._child_of(live), outdated)

    def outdated_fingerprint(self, live: Body | None, wanted: Body) -> str | None:
        """Return the fingerprint of the child's arguments and the `wanted` ones if the child has the arguments of
        `live`; otherwise None."""
        child = self._child_of(live) if live is not None else None
        if live is None or child is None or not carries_arguments(child, live):
            return None
        return fingerprint(child, wanted)

    def _child_of(self, live: Body) -> Body | None:
        children = self.of_knative if mode_of(live) == KNATIVE else self.of_deployments
        return children.get((live["metadata"]["namespace"], child_name(live)))


def observe_children(api: KubeApi, services: Iterable[Body]) -> Children:
    """Return the services' children, with at most two lists for each namespace: one for each deployment mode."""
    wanted = {(_child_kind(service), service["metadata"]["namespace"]) for service in services}
    found: dict[Kind, dict[tuple[str, str], Body]] = {DEPLOYMENT: {}, KNATIVE_SERVICE: {}}
    for kind, namespace in sorted(wanted, key=str):
        found[kind].update(((namespace, item["metadata"]["name"]), item) for item in _items(api, kind, namespace))
    return Children(found[DEPLOYMENT], found[KNATIVE_SERVICE])


def _child_kind(service: Body) -> Kind:
    return KNATIVE_SERVICE if mode_of(service) == KNATIVE else DEPLOYMENT


def _items(api: KubeApi, kind: Kind, namespace: str) -> Iterable[Body]:
    try:
        return api.list(kind, namespace).items
    except KindMissing:
        return ()
