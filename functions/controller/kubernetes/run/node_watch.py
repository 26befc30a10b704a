"""Nodes as a watch on the API server shows them: ready or not, tainted, cleared by an operator.

Only these facts of a Node are stored. So a kubelet's periodic status is no change, and thousands of nodes need little
memory. Without the permission to watch nodes, nothing is known of them, and nothing else changes.

Neighbours: `informer` lists and watches; `health_reconciler` acts.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from functions.controller.kubernetes.objects import Body, Kind, condition, mapping_at, value_at
from functions.controller.kubernetes.run.informer import Informer, InformerTiming, WatchedKind
from functions.controller.kubernetes.run.object_store import WatchedObject
from functions.controller.kubernetes.run.watch_client import WatchClient
from functions.decisions.health.failure_domains import NodeTrouble

NODE = Kind("v1", "Node")
TAINT = "shoal.dev/accelerator-error"  # also the annotation that has the error
CLEARED_ANNOTATION = "shoal.dev/accelerator-cleared"
_TROUBLES: Mapping[str, NodeTrouble] = {"False": "down", "Unknown": "unknown"}


class NodeFacts(msgspec.Struct, frozen=True):
    trouble: NodeTrouble | None = None  # None means ready
    is_tainted: bool = False  # tainted by the controller
    is_cleared: bool = False  # an operator confirms that its accelerators were repaired


def facts_of(body: Body) -> NodeFacts:
    ready = condition(body, "Ready")
    status = str(ready.get("status")) if ready is not None else "True"  # a new node has no condition yet
    is_tainted = any(each.get("key") == TAINT for each in taints_of(body))
    return NodeFacts(
        _TROUBLES.get(status), is_tainted, CLEARED_ANNOTATION in mapping_at(body, "metadata", "annotations")
    )


def taints_of(body: Body) -> list[dict[str, Any]]:
    found = value_at(body, "spec", "taints")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


class NodeInformer(Informer):
    """Informer of nodes. `run` belongs to one thread; any thread may use the rest."""

    def __init__(
        self, client: WatchClient, on_change: Callable[[], None], timing: InformerTiming | None = None
    ) -> None:
        super().__init__(client, WatchedKind("v1", "Node", "nodes", namespace=""), on_change, timing)

    def nodes(self) -> dict[str, NodeFacts]:
        """Return the nodes by name; none before they were listed."""
        return {each.name: msgspec.json.decode(each.document, type=NodeFacts) for each in self.store.objects()}

    def _stored(self, item: dict[str, Any]) -> WatchedObject:
        metadata = item["metadata"]
        return WatchedObject(
            name=metadata["name"],
            namespace="",
            uid=metadata.get("uid", ""),
            resource_version=metadata.get("resourceVersion", ""),
            generation=0,
            document=msgspec.json.encode(facts_of(item)),
        )
