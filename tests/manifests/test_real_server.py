"""A real API server admits every document of both overlays and drops no field silently.

Each document is applied server-side as a dry run; Namespaces and CRDs are created, since the rest needs them. A server
rejects unknown fields of its own kinds but drops those of CRDs, so the result is compared with what was sent.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiException
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import UnprocessibleEntityError

from tests.controller.kubernetes.api_server import ApiServer, minor_version
from tests.controller.kubernetes.crds import create_crds
from tests.controller.kubernetes.fixtures import TIMEOUT_S
from tests.manifests.rendering import MANIFESTS, Document, Rendering, name_of

pytestmark = [pytest.mark.servers, pytest.mark.timeout(TIMEOUT_S)]

FOREIGN_CRDS = (
    "serving.kserve.io_inferenceservices.yaml",
    "serving.kserve.io_servingruntimes.yaml",
    "serving.kserve.io_clusterstoragecontainers.yaml",
    "serving.knative.dev_services.yaml",
)
# Tests also run on Kubernetes 1.20, where only the PodDisruptionBudgets differ.
WHOLE_BUDGETS_FROM = 27  # `unhealthyPodEvictionPolicy` is on by default since Kubernetes 1.27
PLURALS = {"NetworkPolicy": "networkpolicies", "PriorityClass": "priorityclasses"}
CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding", "Namespace", "PriorityClass", "CustomResourceDefinition"}
CLUSTER_WIDE |= {"ClusterStorageContainer"}


@pytest.fixture(scope="module")
def cluster(api_server: ApiServer, crds_dir: Path, staging: Rendering) -> DynamicClient:
    """An API server with the CRDs and the two namespaces."""
    client = api_server.client()
    create_crds(client, *(crds_dir / name for name in FOREIGN_CRDS))
    create_crds(client, *sorted((MANIFESTS / "base" / "crds").glob("*.yaml")))
    for namespace in staging.of("Namespace"):
        apply(client, namespace, dry_run=False)
    return client


@pytest.mark.parametrize("overlay", ["staging", "production"])
def test_is_admitted_and_kept_whole(overlay: str, cluster: DynamicClient, request: pytest.FixtureRequest) -> None:
    rendering: Rendering = request.getfixturevalue(overlay)
    findings = []
    for document in rendering.documents:
        if document["kind"] == "CustomResourceDefinition":
            continue  # created above
        try:
            kept = apply(cluster, document, dry_run=True)
        except ApiException as error:
            findings.append(f"{name_of(document)}: {error.status}: {error.body!r}")
            continue
        findings += [f"{name_of(document)}: {path}" for path in dropped(_as_taken(cluster, document), kept)]
    assert findings == []


def test_a_misspelt_field_is_refused(cluster: DynamicClient, staging: Rendering) -> None:
    document = staging.copied().one("NetworkPolicy", "bus")
    document["spec"]["policyType"] = document["spec"].pop("policyTypes")
    with pytest.raises(ApiException, match="policyType"):
        apply(cluster, document, dry_run=True)


def test_a_misspelt_field_of_a_crd_is_noticed(cluster: DynamicClient, staging: Rendering) -> None:
    document = staging.copied().one("ServingRuntime", "shoal-vllm")
    document["spec"]["protocolVersion"] = document["spec"].pop("protocolVersions")
    try:
        kept = apply(cluster, document, dry_run=True)
    except ApiException as error:  # newer servers
        assert "protocolVersion: field not declared in schema" in str(error.body)
    else:
        assert list(dropped(document, kept)) == [".spec.protocolVersion"]


def test_a_wrong_type_is_refused(cluster: DynamicClient, staging: Rendering) -> None:
    document = staging.copied().one("InferenceService", "smollm2-135m")
    document["spec"]["predictor"]["minReplicas"] = "two"
    with pytest.raises(ApiException, match="minReplicas"):
        apply(cluster, document, dry_run=True)


def test_a_selector_that_misses_its_own_pods_is_refused(cluster: DynamicClient, staging: Rendering) -> None:
    document = staging.copied().one("Deployment", "controller")
    document["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"] = "other"
    with pytest.raises(UnprocessibleEntityError, match="selector"):
        apply(cluster, document, dry_run=True)


def apply(client: DynamicClient, document: Document, *, dry_run: bool) -> dict[str, Any]:
    """Apply the document like `kubectl apply --server-side`; return the object that results."""
    body = _as_taken(client, document)
    query = [("fieldManager", "installer"), ("force", "false"), *([("dryRun", "All")] if dry_run else [])]
    kept: dict[str, Any] = client.request(
        "patch",
        _path(body),
        body=body,
        query_params=query,
        content_type="application/apply-patch+yaml",
        serializer=lambda _client, data: data,
    )
    return kept


def _as_taken(client: DynamicClient, document: Document) -> Document:
    """Return the document without fields that this server's version does not know."""
    if document["kind"] != "PodDisruptionBudget" or minor_version(client) >= WHOLE_BUDGETS_FROM:
        return document
    spec = {key: value for key, value in document["spec"].items() if key != "unhealthyPodEvictionPolicy"}
    return {**document, "apiVersion": "policy/v1beta1", "spec": spec}


def dropped(sent: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Yield paths of keys that were sent and did not come back; values may change their form."""
    if path in (".apiVersion", ".metadata.managedFields"):
        return
    if isinstance(sent, dict) and isinstance(kept, dict):
        for key, value in sent.items():
            if key in kept:
                yield from dropped(value, kept[key], f"{path}.{key}")
            elif value not in ({}, [], None, ""):
                yield f"{path}.{key}"
    elif isinstance(sent, list) and isinstance(kept, list):
        if len(sent) != len(kept):
            yield path
        for one, other in zip(sent, kept, strict=False):
            yield from dropped(one, other, f"{path}[]")


def _path(document: Document) -> str:
    version, kind, metadata = document["apiVersion"], document["kind"], document["metadata"]
    plural = PLURALS.get(kind, _plural(kind))
    root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    where = "" if kind in CLUSTER_WIDE else f"/namespaces/{metadata['namespace']}"
    return f"{root}{where}/{plural}/{metadata['name']}"


def _plural(kind: str) -> str:
    word = kind.lower()
    return f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"
