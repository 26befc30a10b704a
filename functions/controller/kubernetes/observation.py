"""Live state of a cluster: every object of the kinds and namespaces that we touch, and services' children.

Lists instead of single reads: one request for each kind and namespace, however many pools there are, and objects that
carry our name without being in the inventory are seen too.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.errors import KindMissing
from functions.controller.kubernetes.health import (
    CURRENT,
    Health,
    carries_arguments,
    child_name,
    fingerprint,
    judge,
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
    """All objects at these places; a kind that is not served has none."""
    found: dict[ObjectRef, Body] = {}
    for kind, namespace in sorted(set(places), key=str):
        found.update((ref_of(item), item) for item in _items(api, kind, namespace))
    return found


@dataclass(frozen=True, slots=True)
class Children:
    """What KServe made for the services, by namespace and name."""

    of_deployments: dict[tuple[str, str], Body]
    of_knative: dict[tuple[str, str], Body]

    def health_of(self, live: Body | None, outdated: str = "") -> Health:
        """`outdated` is the fingerprint of arguments that are from before our last change."""
        if live is None:
            return Health("InProgress", "Missing", "does not exist yet")
        if live.get("kind") != INFERENCE_SERVICE.kind:
            return judge(live, None) if live["metadata"].get("deletionTimestamp") else CURRENT
        return judge(live, self._child_of(live), outdated)

    def outdated_by(self, live: Body | None, wanted: Body) -> str | None:
        """The fingerprint of the child as it is, where it is what `live` asks for and not yet what `wanted` does."""
        child = self._child_of(live) if live is not None else None
        if live is None or child is None or not carries_arguments(child, live):
            return None
        return fingerprint(child, wanted)

    def _child_of(self, live: Body) -> Body | None:
        children = self.of_knative if mode_of(live) == KNATIVE else self.of_deployments
        return children.get((live["metadata"]["namespace"], child_name(live)))


def observe_children(api: KubeApi, services: Iterable[Body]) -> Children:
    """Two requests for each namespace at most: one for each mode that is used there."""
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
