"""Status document of an installation on a cluster, from the objects of its API server.

    processes   gateway, registry, controller, bus: ready pods of all, and why a pod is not ready
    replicas    pods of pools: node and zone, phase, restarts
    objects     pools, tenants, policies and models that are not ready, with the controller's conditions
    revision    the revision that the controller applied last, and the last attempts

The load of replicas (tokens, adapters, queues) is in heartbeats, which `shoal top` shows.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from functions.api.kinds.inference_service import POOL_LABEL, is_pool
from functions.cli.cluster.access import Body, Cluster, Forbidden
from functions.cli.cluster.facts import Items, own_objects
from functions.cli.cluster.finding import condition, labels_of, name_of

_NAME = "app.kubernetes.io/name"
PROCESSES = ("gateway", "registry", "controller", "bus")
_ZONE = "topology.kubernetes.io/zone"
_STATES = {"True": "Ready", "False": "Stalled"}


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    pods: Items  # in both namespaces
    pools: Items
    objects: Items  # objects of shoal.dev, with their kinds
    nodes: Items
    record: Body | None  # the controller's ConfigMap
    leader: str


def read_objects(cluster: Cluster) -> ClusterObjects:
    """Read the objects with six requests and one for each of shoal's kinds. Fail if a part may not be read."""
    system, models = cluster.choice.system, cluster.choice.models
    lease = cluster.get(f"/apis/coordination.k8s.io/v1/namespaces/{system}/leases/shoal-controller") or {}
    return ClusterObjects(
        pods=tuple(each for where in (system, models) for each in cluster.list(f"/api/v1/namespaces/{where}/pods")),
        pools=tuple(cluster.list(f"/apis/serving.kserve.io/v1beta1/namespaces/{models}/inferenceservices")),
        objects=own_objects(cluster),
        nodes=_nodes(cluster),
        record=cluster.get(f"/api/v1/namespaces/{system}/configmaps/shoal-controller"),
        leader=str(lease.get("spec", {}).get("holderIdentity") or ""),
    )


def _nodes(cluster: Cluster) -> Items:
    """Return the nodes, which give the zones; empty if the credentials cover only namespaces."""
    try:
        return tuple(cluster.list("/api/v1/nodes"))
    except Forbidden:
        return ()


def status_document(seen: ClusterObjects) -> dict[str, Any]:
    zones = {name_of(node): labels_of(node).get(_ZONE, "") for node in seen.nodes}
    processes = [_process(name, seen.pods, seen.leader) for name in PROCESSES]
    objects = [_object("pool", each) for each in seen.pools if is_pool(labels_of(each))]
    objects += [_object(_singular(each["kind"]), each) for each in seen.objects]
    replicas = [_replica(pod, zones) for pod in seen.pods if POOL_LABEL in labels_of(pod)]
    is_ready = all(each["ready"] for each in processes) and all(each["state"] == "Ready" for each in objects)
    return {
        "ready": is_ready,
        "processes": processes,
        "replicas": sorted(replicas, key=lambda each: (each["pool"], each["replica_id"])),
        "objects": [each for each in objects if each["state"] != "Ready"],
        "counts": dict(Counter(each["kind"] for each in objects if each["state"] == "Ready")),
        "revision": revision_of(seen.record),
    }


def _process(name: str, pods: Items, leader: str) -> dict[str, Any]:
    own = [pod for pod in pods if labels_of(pod).get(_NAME) == name and not _ended(pod)]
    ready = [pod for pod in own if condition(pod, "Ready") == "True"]
    return {
        "name": name,
        "ready": len(ready),
        "pods": len(own),
        "restarts": sum(map(_restarts, own)),
        "leader": next((name_of(pod) for pod in own if leader.startswith(name_of(pod))), "") if leader else "",
        "reason": "; ".join(sorted({_reason(pod) for pod in own if pod not in ready})) if own else "there is no pod",
    }


def _replica(pod: Body, zones: Mapping[str, str]) -> dict[str, Any]:
    node = str(pod["spec"].get("nodeName", ""))
    ending = "deletionTimestamp" in pod["metadata"]
    phase = "ready" if condition(pod, "Ready") == "True" else str(pod.get("status", {}).get("phase", "")).lower()
    return {
        "replica_id": name_of(pod),
        "pool": labels_of(pod)[POOL_LABEL],
        "phase": "ending" if ending else phase,
        "node": node,
        "zone": zones.get(node, ""),
        "restarts": _restarts(pod),
        "reason": "" if phase == "ready" else _reason(pod),
    }


def _object(kind: str, body: Body) -> dict[str, Any]:
    said = next((each for each in _conditions(body) if each.get("type") == "Ready"), {})
    return {
        "kind": kind,
        "name": name_of(body),
        "state": _STATES.get(str(said.get("status")), "Reconciling"),
        "reason": str(said.get("reason", "")),
        "message": str(said.get("message", "")),
    }


def revision_of(record: Body | None) -> dict[str, Any]:
    """Return the applied and attempted revisions and the suspension, from the controller's record."""
    data = (record or {}).get("data") or {}
    annotations = ((record or {}).get("metadata") or {}).get("annotations") or {}
    try:
        history = json.loads(data.get("history") or "[]")
    except ValueError:
        history = []
    return {
        "last_applied": data.get("lastAppliedRevision", ""),
        "last_attempted": data.get("lastAttemptedRevision", ""),
        "history": history,
        "suspended": annotations.get("shoal.dev/suspend", "").lower() == "true",
        "suspend_reason": annotations.get("shoal.dev/suspend-reason", ""),
    }


def _reason(pod: Body) -> str:
    """Return why a pod is not ready: a container's waiting reason, else a condition such as the scheduler's, else its
    phase."""
    status = pod.get("status", {})
    for each in status.get("containerStatuses", ()):
        waiting = each.get("state", {}).get("waiting")
        if waiting:
            return ": ".join(filter(None, (waiting.get("reason"), str(waiting.get("message", ""))[:200])))
    return _first(_conditions(pod), lambda each: each.get("status") == "False") or str(status.get("phase", "unknown"))


def _first(conditions: Iterable[Body], chosen: Callable[[Body], bool]) -> str:
    found = next(filter(chosen, conditions), {})
    return ": ".join(filter(None, (found.get("reason"), str(found.get("message", ""))[:200])))


def _conditions(body: Body) -> list[Body]:
    conditions: list[Body] = body.get("status", {}).get("conditions") or []
    return conditions


def _restarts(pod: Body) -> int:
    return sum(int(each.get("restartCount", 0)) for each in pod.get("status", {}).get("containerStatuses", ()))


def _ended(pod: Body) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _singular(plural: str) -> str:
    return plural.removesuffix("policies") if plural.endswith("policies") else plural.removesuffix("s")
