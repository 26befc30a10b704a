"""Check NetworkPolicies: nothing is open by omission, and every rule selects pods and ports that exist."""

from collections.abc import Iterator
from typing import Any

from tests.manifests.rendering import Document, Rendering, name_of
from tests.manifests.workloads import Workload, initializers, workloads

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
# Namespaces outside shoal, and the labels for those whose names differ (manifests/README.md).
FOREIGN = ({NAMESPACE_LABEL: "kube-system"}, {NAMESPACE_LABEL: "knative-serving"}, {"shoal.dev/ingress": "true"})
FOREIGN_LABELS = (
    *FOREIGN,
    {"shoal.dev/monitoring": "true"},
    {"shoal.dev/git-server": "true"},
    {"shoal.dev/regions": "true"},
)
ENGINE_PORT = 8080
QUEUE_PROXY_PORTS = {8012, 8112, 9090, 9091}  # Knative's sidecar: requests, requests with TLS, its own and our metrics


def network_findings(rendering: Rendering) -> Iterator[str]:
    policies = list(rendering.of("NetworkPolicy"))
    for namespace in rendering.of("Namespace"):
        if not any(_denies_all(policy, namespace["metadata"]["name"]) for policy in policies):
            yield f"{name_of(namespace)} has no default deny"
    for policy in policies:
        here = policy["metadata"]["namespace"]
        chosen = _matching(policy["spec"]["podSelector"], here, rendering)
        if not chosen and policy["spec"]["podSelector"]:
            yield f"{name_of(policy)} selects no pod"
        for rule in policy["spec"].get("ingress", []):
            yield from _peers(policy, rule.get("from", []), rendering)
            yield from _ports(policy, rule, chosen, rendering)
            yield from _engines_reached(policy, rule, chosen)
        for rule in policy["spec"].get("egress", []):
            yield from _peers(policy, rule.get("to", []), rendering)
            for peer in rule.get("to", []):
                yield from _ports(policy, rule, _of_peer(peer, here, rendering), rendering)


def _denies_all(policy: Document, namespace: str) -> bool:
    spec = policy["spec"]
    return (
        policy["metadata"]["namespace"] == namespace
        and spec["podSelector"] == {}
        and set(spec["policyTypes"]) == {"Ingress", "Egress"}
        and not spec.get("ingress")
        and not spec.get("egress")
    )


def _peers(policy: Document, peers: list[dict[str, Any]], rendering: Rendering) -> Iterator[str]:
    for peer in peers:
        labels = peer.get("namespaceSelector", {}).get("matchLabels")
        if labels in FOREIGN_LABELS:
            continue
        if not _of_peer(peer, policy["metadata"]["namespace"], rendering):
            yield f"{name_of(policy)}: {peer} is nobody"


def _of_peer(peer: dict[str, Any], here: str, rendering: Rendering) -> list[Workload]:
    labels = peer.get("namespaceSelector", {}).get("matchLabels", {NAMESPACE_LABEL: here})
    return _matching(peer.get("podSelector", {}), labels.get(NAMESPACE_LABEL, ""), rendering)


def _ports(policy: Document, rule: dict[str, Any], chosen: list[Workload], rendering: Rendering) -> Iterator[str]:
    """Check that a selected pod, or a storage initializer of one, listens on each port."""
    listened = {port for workload in chosen for port in listening(workload)}
    if any("shoal.dev/pool" in workload.labels for workload in chosen):
        listened |= {port["containerPort"] for each in initializers(rendering) for port in each.get("ports", [])}
    for entry in rule.get("ports", []):
        if chosen and entry["port"] not in listened:
            yield f"{name_of(policy)}: nobody there listens on {entry['port']}"


def _engines_reached(policy: Document, rule: dict[str, Any], chosen: list[Workload]) -> Iterator[str]:
    """Check that only gateways and cooperating pools reach an engine's port: engines check no keys."""
    if not any("shoal.dev/pool" in workload.labels for workload in chosen):
        return
    if not any(entry["port"] == ENGINE_PORT for entry in rule.get("ports", [])) and "ports" in rule:
        return
    for peer in rule.get("from", [{}]):
        if peer.get("podSelector") == policy["spec"]["podSelector"]:
            continue
        if peer.get("podSelector", {}).get("matchLabels", {}).get("app.kubernetes.io/name") != "gateway":
            yield f"{name_of(policy)}: {peer or 'everybody'} reaches engines' whole API"


def listening(workload: Workload) -> set[int]:
    containers = workload.containers
    ports = {port["containerPort"] for container in containers for port in container.get("ports", [])}
    for container in containers:
        for entry in container.get("env", []):
            if entry["name"].startswith("SHOAL_") and entry["name"].endswith("_PORT") and "value" in entry:
                ports.add(int(entry["value"]))
    return ports | (QUEUE_PROXY_PORTS if workload.knative else set())


def _matching(selector: dict[str, Any], namespace: str, rendering: Rendering) -> list[Workload]:
    return [
        workload
        for workload in workloads(rendering)
        if workload.namespace == namespace and _matches(selector, workload.labels)
    ]


def _matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    for expression in selector.get("matchExpressions", []):
        value = labels.get(expression["key"])
        if expression["operator"] == "In" and value not in expression["values"]:
            return False
        assert expression["operator"] in ("In", "Exists"), "the only operators that these policies use"
        if value is None:
            return False
    wanted: dict[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= labels.items()
