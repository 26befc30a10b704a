"""`shoal restart` for a cluster: replace the pods of a process or a pool by a rolling update.

    gateway, registry    Knative Services: a new revision takes over when it is ready
    controller, bus      a Deployment and a StatefulSet, like `kubectl rollout restart`
    a pool               its InferenceService, from which KServe makes the Deployment: each replica drains first

New pods read addresses and Secrets again. The order is an annotation of the pod template. The kind's own controller
carries it out, and continues if this command is stopped. For a pool the InferenceService is annotated, because KServe
removes foreign annotations from its Deployment, which would undo the update.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from functions.api.kinds.inference_service import POOL_LABEL, is_pool
from functions.cli.cluster.access import Body, Cluster, ClusterChoice, KubeCluster
from functions.cli.cluster.finding import labels_of, name_of
from functions.cli.refused import CommandRefused
from functions.cli.terminal import TerminalReporter, make_console

RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"
POOL_RESTARTED_AT = "shoal.dev/restarted-at"
TIMEOUT_S = 3600.0
_POLL_S = 1.0
_APPS, _KNATIVE = "/apis/apps/v1", "/apis/serving.knative.dev/v1"
_KSERVE = "/apis/serving.kserve.io/v1beta1"
_PROCESSES = {
    "gateway": (_KNATIVE, "services"),
    "registry": (_KNATIVE, "services"),
    "controller": (_APPS, "deployments"),
    "bus": (_APPS, "statefulsets"),
}


@dataclass(frozen=True, slots=True)
class Roll:
    """URL paths of the object that rolls pods (`path`) and of the object that gets the annotation (`ordered_at`)."""

    path: str
    resource: str
    ordered_at: str
    key: str = RESTARTED_AT

    def order(self, stamp: str) -> Body:
        annotations = {self.key: stamp}
        if self.ordered_at == self.path:
            return {"spec": {"template": {"metadata": {"annotations": annotations}}}}
        return {"spec": {"predictor": {"annotations": annotations}}}


def restart(choice: ClusterChoice, name: str) -> None:
    cluster = KubeCluster(choice)
    roll = roll_of(cluster, name)
    stamp = datetime.now(UTC).isoformat()
    cluster.patch(roll.ordered_at, roll.order(stamp))
    deadline_s = time.monotonic() + TIMEOUT_S
    with TerminalReporter(make_console()).step(f"Restarting {name}") as step:
        while True:
            left = remaining_work(roll, cluster.get(roll.path) or {}, stamp)
            if not left:
                step.note("all of its pods are new")
                return
            if time.monotonic() > deadline_s:
                raise CommandRefused(
                    f"{left} after {TIMEOUT_S / 60:.0f} min; the update continues, and `shoal status` shows the pods"
                )
            step.update(left)
            time.sleep(_POLL_S)


def roll_of(cluster: Cluster, name: str) -> Roll:
    """Return the rolling update of a process or pool. If there is none of that name, fail with the known names."""
    system, models = cluster.choice.system, cluster.choice.models
    if name in _PROCESSES:
        group, resource = _PROCESSES[name]
        path = f"{group}/namespaces/{system}/{resource}/{name}"
        return Roll(path, resource, path)
    services = f"{_KSERVE}/namespaces/{models}/inferenceservices"
    pools = {labels_of(each)[POOL_LABEL]: name_of(each) for each in cluster.list(services) if is_pool(labels_of(each))}
    if name in pools:
        path = f"{_APPS}/namespaces/{models}/deployments/{pools[name]}-predictor"
        return Roll(path, "deployments", f"{services}/{pools[name]}", POOL_RESTARTED_AT)
    if cluster.get(f"/api/v1/namespaces/{models}/pods/{name}") is not None:
        raise CommandRefused(f"{name} is one replica: `shoal drain {name}` replaces it without losing a request")
    known = ", ".join([*_PROCESSES, *sorted(pools)])
    raise CommandRefused(f"there is no process or pool {name!r}; there are: {known}")


def remaining_work(roll: Roll, body: Body, stamp: str) -> str:
    """Return what is left of the update that was ordered at `stamp` (UTC); empty if it is complete.

    An update that was ordered later counts too, because its pods are newer.
    """
    status, spec = body.get("status") or {}, body.get("spec") or {}
    annotations = ((spec.get("template") or {}).get("metadata") or {}).get("annotations") or {}
    is_seen = int(status.get("observedGeneration", 0)) >= int((body.get("metadata") or {}).get("generation", 0))
    if not _is_as_late(str(annotations.get(roll.key, "")), stamp) or not is_seen:
        return "not begun yet"
    if roll.resource == "services":
        return _of_revisions(status)
    wanted = int(spec.get("replicas", 1))
    new = int(status.get("updatedReplicas", 0))
    if new < wanted:
        return f"{new} of {wanted} pods are new"
    old = int(status.get("replicas", 0)) - new
    if old > 0:
        return f"{old} old pods still end"
    ready = int(status.get("readyReplicas" if roll.resource == "statefulsets" else "availableReplicas", 0))
    return f"{ready} of {wanted} pods are ready" if ready < wanted else ""


def _is_as_late(found: str, stamp: str) -> bool:
    try:
        return datetime.fromisoformat(found) >= datetime.fromisoformat(stamp)
    except (ValueError, TypeError):  # not a time, or a time without a zone
        return False


def _of_revisions(status: Mapping[str, object]) -> str:
    made, ready = status.get("latestCreatedRevisionName"), status.get("latestReadyRevisionName")
    if not made or made != ready:
        return f"revision {made or '?'} is not ready yet"
    traffic = status.get("traffic")
    parts = traffic if isinstance(traffic, list) else []
    percent = sum(int(each.get("percent") or 0) for each in parts if each.get("revisionName") == made)
    return "" if percent == 100 else f"{percent} % of requests go to revision {made}"
