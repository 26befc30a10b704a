"""Check every container: security context (Pod Security's `restricted`), resources and probes."""

from collections.abc import Iterator
from typing import Any

from tests.manifests.checks.settings import module_of
from tests.manifests.rendering import Rendering
from tests.manifests.workloads import Workload, workloads

_VOLUMES = {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret", "csi", "ephemeral"}
_HOST_FIELDS = ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace")


def hardening_findings(rendering: Rendering) -> Iterator[str]:
    for workload in workloads(rendering):
        if workload.foreign:
            continue
        yield from (f"{workload.name}: {field} is set" for field in _HOST_FIELDS if workload.pod.get(field))
        for volume in workload.pod.get("volumes", []):
            if not volume.keys() & _VOLUMES:
                yield f"{workload.name}: the volume {volume['name']} is of a kind that `restricted` refuses"
            if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
                yield f"{workload.name}: the volume {volume['name']} has no sizeLimit, and could fill the node's disk"
        for container in workload.containers:
            watched = container in workload.pod["containers"]
            unwatched = _unwatched(container) if watched and not workload.once else ()
            for missing in (*_unsafe(container, workload), *_unsized(container), *unwatched):
                yield f"{workload.name}: {container['name']} {missing}"


def _unsafe(container: dict[str, Any], workload: Workload) -> Iterator[str]:
    pod = workload.pod.get("securityContext", {})
    own = container.get("securityContext", {})
    both = {**pod, **own}
    if both.get("runAsNonRoot") is not True:
        yield "may run as root"
    if both.get("runAsUser", 0) == 0:
        yield "names no user, or root"
    if both.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "has no seccomp profile"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "may gain privileges"
    if own.get("readOnlyRootFilesystem") is not True:
        yield "may write to its root"
    if own.get("capabilities") != {"drop": ["ALL"]}:
        yield "keeps capabilities"
    if own.get("privileged"):
        yield "is privileged"


def _unsized(container: dict[str, Any]) -> Iterator[str]:
    resources = container.get("resources", {})
    for what in ("cpu", "memory"):
        if what not in resources.get("requests", {}):
            yield f"requests no {what}"
    if "memory" not in resources.get("limits", {}):
        yield "has no limit of memory: a leak would take the node"


def _unwatched(container: dict[str, Any]) -> Iterator[str]:
    for probe in ("readinessProbe", "livenessProbe"):
        handler = container.get(probe, {})
        if not handler.keys() & {"httpGet", "tcpSocket", "exec", "grpc"}:
            yield f"has no {probe}"
        elif "timeoutSeconds" not in handler:
            yield f"leaves the {probe}'s timeout at 1 s"
    if "livenessProbe" in container and "startupProbe" not in container and module_of(container):
        yield "has no startupProbe: a busy node would end it while it starts"
