"""Check references: each named object is rendered or (Secrets, volumes of weights) listed in the README."""

import re
from collections.abc import Iterator
from typing import Any

from tests.manifests.rendering import MANIFESTS, Document, Rendering, name_of
from tests.manifests.workloads import Workload, workloads

_BUILT_IN_PRIORITIES = {"system-cluster-critical", "system-node-critical"}
_SECRET_ROW = re.compile(r"^\| `(?P<namespace>[\w-]+)` \| `(?P<name>[\w-]+)` \| `(?P<key>[\w.<>-]+)` \|", re.MULTILINE)
_POD_NAME = "statefulset.kubernetes.io/pod-name"


def reference_findings(rendering: Rendering) -> Iterator[str]:
    for workload in workloads(rendering):
        yield from _accounts_and_classes(workload, rendering)
        yield from _volumes(workload, rendering)
        yield from _variables(workload, rendering)
    for binding in rendering.of("RoleBinding", "ClusterRoleBinding"):
        yield from _binding(binding, rendering)
    for service in rendering.of("Service"):
        yield from _selector(service, rendering)
    for budget in rendering.of("PodDisruptionBudget"):
        labels = budget["spec"]["selector"]["matchLabels"]
        if not _selected(labels, budget["metadata"]["namespace"], rendering):
            yield f"{name_of(budget)} selects no pod"


def documented_secrets() -> set[tuple[str, str, str]]:
    """Return (namespace, name, key) of each Secret in the README's table."""
    text = (MANIFESTS / "README.md").read_text()
    return {(row["namespace"], row["name"], row["key"]) for row in _SECRET_ROW.finditer(text)}


def used_secrets(rendering: Rendering) -> set[tuple[str, str]]:
    return {
        (workload.namespace, volume["secret"]["secretName"])
        for workload in workloads(rendering)
        for volume in workload.pod.get("volumes", [])
        if "secret" in volume
    }


def _accounts_and_classes(workload: Workload, rendering: Rendering) -> Iterator[str]:
    account = workload.pod.get("serviceAccountName")
    if account and not _exists(rendering, "ServiceAccount", account, workload.namespace):
        yield f"{workload.name}: there is no ServiceAccount {account}"
    priority = workload.pod.get("priorityClassName")
    if priority and priority not in _BUILT_IN_PRIORITIES and not _exists(rendering, "PriorityClass", priority, None):
        yield f"{workload.name}: there is no PriorityClass {priority}"


def _volumes(workload: Workload, rendering: Rendering) -> Iterator[str]:
    volumes = {volume["name"]: volume for volume in workload.pod.get("volumes", [])}
    documented = documented_secrets()
    for name, volume in volumes.items():
        config = volume.get("configMap", {"optional": True})
        if not config.get("optional") and not _exists(rendering, "ConfigMap", config["name"], workload.namespace):
            yield f"{workload.name}: the volume {name} wants a ConfigMap that is not there"
        secret = volume.get("secret", {}).get("secretName")
        if secret and not any((workload.namespace, secret) == row[:2] for row in documented):
            yield f"{workload.name}: the Secret {secret} is not in the README's table"
    mounted = set()
    for container in workload.containers:
        for mount in container.get("volumeMounts", []):
            mounted.add(mount["name"])
            if mount["name"] not in volumes and mount["name"] not in workload.claims:
                yield f"{workload.name}: {container['name']} mounts {mount['name']}, which is no volume"
    yield from (f"{workload.name}: nothing mounts the volume {name}" for name in sorted(volumes.keys() - mounted))
    yield from _files(workload, volumes, documented)


def _files(workload: Workload, volumes: dict[str, Any], documented: set[tuple[str, str, str]]) -> Iterator[str]:
    """Check that each setting with a path below a mounted Secret names a documented key of that Secret."""
    for container in workload.containers:
        for entry in container.get("env", []):
            path = str(entry.get("value", ""))
            if not entry["name"].startswith("SHOAL_") or not path.startswith("/"):
                continue
            mounts = [
                each for each in container.get("volumeMounts", []) if f"{path}/".startswith(each["mountPath"] + "/")
            ]
            if not mounts:
                yield f"{workload.name}: {entry['name']} is {path}, where nothing is mounted"
                continue
            secret = volumes.get(mounts[0]["name"], {}).get("secret")
            key = path.removeprefix(mounts[0]["mountPath"] + "/")
            is_folder = path == mounts[0]["mountPath"]
            if secret and not is_folder and (workload.namespace, secret["secretName"], key) not in documented:
                yield f"{workload.name}: {entry['name']} wants the key {key} of {secret['secretName']}, which has none"


def _variables(workload: Workload, rendering: Rendering) -> Iterator[str]:
    for container in workload.containers:
        for entry in container.get("env", []):
            wanted = entry.get("valueFrom", {}).get("configMapKeyRef")
            if wanted is None:
                continue
            found = [
                document
                for document in rendering.of("ConfigMap")
                if document["metadata"]["name"] == wanted["name"]
                and document["metadata"]["namespace"] == workload.namespace
                and wanted["key"] in document.get("data", {})
            ]
            if not found:
                yield f"{workload.name}: {entry['name']} wants {wanted['key']} of ConfigMap {wanted['name']}: not there"


def _binding(binding: Document, rendering: Rendering) -> Iterator[str]:
    role = binding["roleRef"]
    namespace = binding["metadata"].get("namespace") if role["kind"] == "Role" else None
    if not _exists(rendering, role["kind"], role["name"], namespace):
        yield f"{name_of(binding)}: there is no {role['kind']} {role['name']}"
    for subject in binding["subjects"]:
        if not _exists(rendering, subject["kind"], subject["name"], subject["namespace"]):
            yield f"{name_of(binding)}: there is no {subject['kind']} {subject['name']}"


def _selector(service: Document, rendering: Rendering) -> Iterator[str]:
    if "selector" not in service["spec"]:
        return
    chosen = _selected(service["spec"]["selector"], service["metadata"]["namespace"], rendering)
    if not chosen:
        yield f"{name_of(service)} selects no pod"
    for port in service["spec"]["ports"]:
        for workload in chosen:
            ports = [each for container in workload.containers for each in container.get("ports", [])]
            if not any(port["targetPort"] in (each.get("name"), each["containerPort"]) for each in ports):
                yield f"{name_of(service)}: {workload.name} has no port {port['targetPort']}"


def _selected(labels: dict[str, str], namespace: str, rendering: Rendering) -> list[Workload]:
    return [
        workload
        for workload in workloads(rendering)
        if workload.namespace == namespace and labels.items() <= (workload.labels | _pod_name(labels, workload)).items()
    ]


def _pod_name(labels: dict[str, str], workload: Workload) -> dict[str, str]:
    """Return the pod-name label of a StatefulSet's pod if `labels` selects one of its pods."""
    wanted = labels.get(_POD_NAME, "")
    kind, _, name = workload.name.partition(" ")
    is_one = kind == "StatefulSet" and wanted.rpartition("-")[0] == name.rpartition("/")[2]
    return {_POD_NAME: wanted} if is_one else {}


def _exists(rendering: Rendering, kind: str, name: str, namespace: str | None) -> bool:
    return any(
        document["metadata"]["name"] == name and document["metadata"].get("namespace") == namespace
        for document in rendering.of(kind)
    )
