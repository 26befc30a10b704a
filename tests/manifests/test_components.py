"""Components on both overlays: each passes every check and does what the comment at its top promises."""

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from functions.artifacts.s3 import DEFAULT_BUCKET
from tests.manifests.checks.schemas import Check, schema_findings
from tests.manifests.rendering import MANIFESTS, PROJECT, Document, Rendering, over, render
from tests.manifests.test_overlays import CHECKS

OVERLAYS = {"staging": "inferenceservices", "production": "inferenceservices/fleet"}  # and the pools that git delivers
SETS: dict[str, tuple[str, ...]] = {
    "git": ("git-source",),
    "git elsewhere": ("git-source", "git-authority", "git-port"),
    "git tells": ("git-source", "git-webhook"),
    "store": ("store-port",),
    "https": ("public-https",),
    "cert-manager": ("public-https-cert-manager",),
    "region": ("region",),
    "observability": ("observability",),
    "adapter cache": ("adapter-cache",),
    "all": ("git-source", "git-webhook", "git-authority", "git-port", "store-port", "public-https", "region"),
}
NAME = "llm.example.com"


@cache
def rendered(overlay: str, *components: str, patches: str = "[]") -> Rendering:
    return over(overlay, *components, patches=patches)


def with_pools(overlay: str, components: tuple[str, ...]) -> Rendering:
    """Return the rendering plus the pools that a controller with the git source applies."""
    made = rendered(overlay, *components)
    made = Rendering([*made.documents, *_made_by_hand(components)])
    if "git-source" not in components:
        return made
    return Rendering([*made.documents, *render(PROJECT / OVERLAYS[overlay]).documents])


def _made_by_hand(components: tuple[str, ...]) -> list[Document]:
    """Return the objects that a component's comment tells the operator to create."""
    if "git-authority" not in components:
        return []
    metadata = {"name": "git-authority", "namespace": "shoal"}
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ca.pem": "…"}}]


def test_every_component_is_tried() -> None:
    """A component counts as tried if it is in `SETS` or if an overlay includes it."""
    shipped = [yaml.safe_load((MANIFESTS / "overlays" / each / "kustomization.yaml").read_text()) for each in OVERLAYS]
    tried = {Path(each).name for overlay in shipped for each in overlay.get("components", ())}
    there = {path.parent.name for path in (MANIFESTS / "components").glob("*/kustomization.yaml")}
    assert there == tried | {each for components in SETS.values() for each in components}


_OPERATOR = "monitoring.coreos.com/v1 "  # Prometheus operator; its CRDs are not available here


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("chosen", SETS)
def test_it_passes_every_check(overlay: str, chosen: str) -> None:
    made = with_pools(overlay, SETS[chosen])
    assert [finding for check in CHECKS for finding in check(made)] == []


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("chosen", SETS)
def test_it_fits_the_schemas_of_kserve_and_knative(overlay: str, chosen: str, crds_dir: Path) -> None:
    check: Check = schema_findings(crds_dir)
    found = [each for each in check(with_pools(overlay, SETS[chosen])) if f" says what {_OPERATOR}" not in each]
    assert found == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_git_source_delivers_what_the_overlay_would_have(overlay: str, request: pytest.FixtureRequest) -> None:
    """Only the fleet's objects leave the rendering; everything else is unchanged."""
    before: Rendering = request.getfixturevalue(overlay)
    after = rendered(overlay, "git-source")
    fleet = {"InferenceService", "Tenant", "Model"} | {each["kind"] for each in before.documents if _is_ours(each)}
    assert [each["kind"] for each in after.documents if each["kind"] in fleet] == []
    assert named(before.of("Service", "Role", "NetworkPolicy")) <= named(after.documents)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_store_on_another_port_is_opened_for_all_its_clients(overlay: str) -> None:
    """Apply the patch from the component's comment: it opens the port in both namespaces and closes none."""
    made = rendered(overlay, "store-port", patches=shown_patch("store-port"))
    for name in ("gateway", "registry", "controller"):
        assert {443, 8333} <= egress_ports(made, "shoal", role(name))
    assert {443, 8333} <= egress_ports(made, "shoal-models", {"shoal.dev/pool": "smollm2-135m"})
    assert 8333 not in egress_ports(made, "shoal", role("bus"))


def test_a_git_server_on_another_port_is_opened_for_the_controller_alone() -> None:
    made = rendered("production", "git-source", "git-port", patches=shown_patch("git-port"))
    assert 8443 in egress_ports(made, "shoal", role("controller"))
    assert 8443 not in egress_ports(made, "shoal", role("registry"))


def shown_patch(component: str) -> str:
    """Return the patches in a component's comment, as a user copies them into an overlay."""
    text = (MANIFESTS / "components" / component / "kustomization.yaml").read_text()
    lines = [line.removeprefix("#")[3:] for line in text.splitlines() if line.startswith("#   ")]
    start = lines.index("patches:")
    return json.dumps(yaml.safe_load("\n".join(lines[start:]))["patches"])


def role(name: str) -> dict[str, str]:
    """Return the labels of the role's pods."""
    return {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "shoal"}


def named(documents: Iterable[Document]) -> set[tuple[str, str]]:
    return {(each["kind"], each["metadata"]["name"]) for each in documents}


def egress_ports(rendering: Rendering, namespace: str, labels: dict[str, str]) -> set[int]:
    """Return the ports to which a pod with these labels may connect, at any destination."""
    found: set[int] = set()
    for policy in rendering.of("NetworkPolicy"):
        if policy["metadata"]["namespace"] == namespace and _selects(policy["spec"]["podSelector"], labels):
            found |= {
                port["port"] for rule in policy["spec"].get("egress", []) if "to" not in rule for port in rule["ports"]
            }
    return found


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    if not selector.get("matchLabels", {}).items() <= labels.items():
        return False
    return all(
        expression["key"] in labels
        and (expression["operator"] == "Exists" or labels[expression["key"]] in expression["values"])
        for expression in selector.get("matchExpressions", [])
    )


@pytest.mark.parametrize("component", ["public-https", "public-https-cert-manager"])
def test_plain_http_is_redirected_on_the_public_name(component: str) -> None:
    """The public name is claimed and redirects HTTP; the gateway's own name has no certificate and is not public."""
    made = rendered("production", component)
    mapping, claim = made.one("DomainMapping", NAME, "shoal"), made.one("ClusterDomainClaim", NAME)
    assert mapping["metadata"]["annotations"]["networking.knative.dev/http-protocol"] == "Redirected"
    assert claim["spec"]["namespace"] == mapping["metadata"]["namespace"]
    assert mapping["spec"]["ref"]["name"] == "gateway"
    gateway = made.one("Service", "gateway", group="serving.knative.dev")
    assert gateway["metadata"]["labels"]["networking.knative.dev/visibility"] == "cluster-local"
    registry = made.one("Service", "registry", group="serving.knative.dev")
    assert registry["metadata"]["labels"]["networking.knative.dev/visibility"] == "cluster-local"
    assert ("tls" in mapping["spec"]) == (component == "public-https")


def test_the_name_is_changed_in_one_place() -> None:
    made = rendered("staging", "public-https", patches=shown_patch("public-https"))
    assert made.one("DomainMapping", "llm.your.domain")
    assert made.one("ClusterDomainClaim", "llm.your.domain")


def test_cert_manager_is_asked_for_mapped_names() -> None:
    prerequisites = render(MANIFESTS / "prerequisites" / "knative-cert-manager")
    assert prerequisites.one("ConfigMap", "config-network")["data"] == {"external-domain-tls": "Enabled"}
    assert "kind: ClusterIssuer" in prerequisites.one("ConfigMap", "config-certmanager")["data"]["issuerRef"]


def test_the_job_makes_the_buckets_that_processes_use(staging: Rendering) -> None:
    """The job uses the Secret of the process that writes to each bucket."""
    job = render(MANIFESTS / "jobs" / "buckets").one("Job", "buckets")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    addresses = staging.one("ConfigMap", "shoal-installation", "shoal")["data"]
    names = {entry["name"]: addresses[entry["valueFrom"]["configMapKeyRef"]["key"]] for entry in container["env"]}
    assert names["S3_BUCKET"] == DEFAULT_BUCKET
    assert [arg.partition("=")[0] for arg in container["args"]] == [f"$({name})" for name in names]
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"]}
    used = {
        service: {each["secret"]["secretName"] for each in pod_of(staging, service)["volumes"] if "secret" in each}
        for service in ("registry", "gateway")
    }
    assert secrets["registry-s3"] in used["registry"]
    assert secrets["gateway-s3"] in used["gateway"]


def pod_of(rendering: Rendering, service: str) -> dict[str, Any]:
    spec: dict[str, Any] = rendering.one("Service", service, group="serving.knative.dev")["spec"]["template"]["spec"]
    return spec


def _is_ours(document: Document) -> bool:
    return str(document["apiVersion"]).startswith("shoal.dev/")
