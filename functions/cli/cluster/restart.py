"""`shoal restart` for a cluster: a process's or a pool's pods anew, a few at a time, as its own kind rolls them.

    gateway, registry    Knative Services: a new revision, which takes over when it is ready
    controller, bus      a Deployment and a StatefulSet, as `kubectl rollout restart` does it
    a pool               the Deployment that KServe made of its InferenceService: each replica drains first

Pods that start read addresses and Secrets anew. The order is an annotation of the pods' template; what follows is what
the kind's own controller does, and goes on where this command is ended.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from functions.api.kinds.inference_service import POOL_LABEL, is_pool
from functions.cli.cluster.access import Body, Cluster, ClusterChoice, KubeCluster
from functions.cli.cluster.finding import labels_of, name_of
from functions.cli.refused import Refused
from functions.cli.terminal import TerminalReporter, make_console

RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"
TIMEOUT_S = 3600.0
_POLL_S = 1.0
_APPS, _KNATIVE = "/apis/apps/v1", "/apis/serving.knative.dev/v1"
_PROCESSES = {
    "gateway": (_KNATIVE, "services"),
    "registry": (_KNATIVE, "services"),
    "controller": (_APPS, "deployments"),
    "bus": (_APPS, "statefulsets"),
}


@dataclass(frozen=True, slots=True)
class Roll:
    """What rolls pods, by its URL path."""

    path: str
    resource: str


def restart(choice: ClusterChoice, name: str) -> None:
    cluster = KubeCluster(choice)
    roll = roll_of(cluster, name)
    annotated = {"metadata": {"annotations": {RESTARTED_AT: datetime.now(UTC).isoformat()}}}
    ordered = cluster.patch(roll.path, {"spec": {"template": annotated}})
    generation = int(ordered["metadata"].get("generation", 0))
    deadline_s = time.monotonic() + TIMEOUT_S
    with TerminalReporter(make_console()).step(f"Restarting {name}") as step:
        while True:
            left = still_to_do(roll.resource, cluster.get(roll.path) or {}, generation)
            if not left:
                step.note("all of its pods are new")
                return
            if time.monotonic() > deadline_s:
                raise Refused(f"{left} after {TIMEOUT_S / 60:.0f} min, and it goes on: `shoal status` shows the pods")
            step.update(left)
            time.sleep(_POLL_S)


def roll_of(cluster: Cluster, name: str) -> Roll:
    """Refused where nothing is called so, with what is."""
    system, models = cluster.choice.system, cluster.choice.models
    if name in _PROCESSES:
        group, resource = _PROCESSES[name]
        return Roll(f"{group}/namespaces/{system}/{resource}/{name}", resource)
    services = list(cluster.list(f"/apis/serving.kserve.io/v1beta1/namespaces/{models}/inferenceservices"))
    pools = {labels_of(each)[POOL_LABEL]: name_of(each) for each in services if is_pool(labels_of(each))}
    if name in pools:
        return Roll(f"{_APPS}/namespaces/{models}/deployments/{pools[name]}-predictor", "deployments")
    if cluster.get(f"/api/v1/namespaces/{models}/pods/{name}") is not None:
        raise Refused(f"{name} is one replica: `shoal drain {name}` lets it end, and another one comes in its place")
    known = ", ".join([*_PROCESSES, *sorted(pools)])
    raise Refused(f"no process and no pool is called {name!r}; there are: {known}")


def still_to_do(resource: str, body: Body, generation: int) -> str:
    """In words, what is left of a roll that began with `generation`; empty where it is over."""
    status = body.get("status") or {}
    if int(status.get("observedGeneration", 0)) < generation:
        return "not begun yet"
    if resource == "services":
        return _of_revisions(status)
    wanted = int((body.get("spec") or {}).get("replicas", 1))
    new = int(status.get("updatedReplicas", 0))
    if new < wanted:
        return f"{new} of {wanted} pods are new"
    old = int(status.get("replicas", 0)) - new
    if old > 0:
        return f"{old} old pods still end"
    ready = int(status.get("readyReplicas" if resource == "statefulsets" else "availableReplicas", 0))
    return f"{ready} of {wanted} pods are ready" if ready < wanted else ""


def _of_revisions(status: Mapping[str, object]) -> str:
    made, ready = status.get("latestCreatedRevisionName"), status.get("latestReadyRevisionName")
    if not made or made != ready:
        return f"revision {made or '?'} is not ready yet"
    traffic = status.get("traffic")
    parts = traffic if isinstance(traffic, list) else []
    percent = sum(int(each.get("percent") or 0) for each in parts if each.get("revisionName") == made)
    return "" if percent == 100 else f"{percent} % of what comes goes to revision {made}"
