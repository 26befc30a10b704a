"""The controller's account has the rights that it needs and no others, according to a real API server."""

import time
from collections.abc import Iterator

import pytest
from kubernetes.dynamic import DynamicClient

from tests.controller.kubernetes.api_server import ApiServer
from tests.controller.kubernetes.fixtures import TIMEOUT_S
from tests.manifests.rendering import MANIFESTS, Rendering, parse
from tests.manifests.test_real_server import apply

pytestmark = [pytest.mark.servers, pytest.mark.timeout(TIMEOUT_S)]

Right = tuple[str, str, str, str, str]  # namespace, verb, group, resource, name

OF_RIGHTS = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
CONTROLLER = "system:serviceaccount:shoal:controller"
PREFIXES = ("quota", "routing", "admission", "rollout", "autoscaling")
KINDS = ["tenants", "models", *(f"{prefix}policies" for prefix in PREFIXES)]
SETTLED_WAIT_S = 60.0  # the authorizer follows the roles by a watch

NEEDED: list[Right] = [
    *(("shoal", verb, "shoal.dev", kind, "") for kind in KINDS for verb in ("list", "watch")),
    *(("shoal", "patch", "shoal.dev", f"{kind}/status", "acme") for kind in KINDS),
    *(("shoal", "patch", "shoal.dev", kind, "x") for kind in ("models", "quotapolicies", "rolloutpolicies")),
    *(("shoal", verb, "", "configmaps", "shoal-controller") for verb in ("get", "patch")),
    ("shoal", "create", "", "configmaps", ""),
    *(("shoal", verb, "coordination.k8s.io", "leases", "shoal-controller") for verb in ("get", "update")),
    ("shoal", "create", "coordination.k8s.io", "leases", ""),
    *(("shoal-models", verb, "serving.kserve.io", "inferenceservices", "") for verb in ("list", "watch")),
    ("shoal-models", "patch", "serving.kserve.io", "inferenceservices", "x"),
    ("shoal-models", "list", "apps", "deployments", ""),
    ("shoal", "list", "", "pods", ""),
    *(("", verb, "", "nodes", "x") for verb in ("get", "list", "watch", "patch")),
    ("shoal-models", "delete", "", "pods", "x"),
    ("shoal-models", "patch", "apps", "deployments/scale", "x"),
    *(("shoal-models", verb, "serving.knative.dev", "revisions", "x") for verb in ("get", "patch")),
    ("shoal-models", "list", "serving.knative.dev", "services", ""),
    *(("shoal-models", verb, "policy", "poddisruptionbudgets", "x") for verb in ("list", "create", "patch", "delete")),
]
OF_GIT_SOURCE: list[Right] = [
    ("shoal-models", verb, "serving.kserve.io", "inferenceservices", "x") for verb in ("create", "delete")
]
FORBIDDEN: list[Right] = [
    *((namespace, "get", "", "secrets", "x") for namespace in ("shoal", "shoal-models", "default")),
    ("shoal", "patch", "shoal.dev", "tenants", "acme"),
    ("shoal", "delete", "shoal.dev", "models", "x"),
    ("shoal", "get", "", "configmaps", "shoal-installation"),
    ("shoal", "update", "coordination.k8s.io", "leases", "other"),
    ("shoal-models", "update", "serving.kserve.io", "inferenceservices", "x"),
    ("shoal-models", "patch", "apps", "deployments", "x"),
    ("shoal-models", "create", "", "pods/exec", "x"),
    ("shoal-models", "list", "shoal.dev", "tenants", ""),
    ("", "delete", "", "nodes", "x"),
    ("", "update", "", "nodes", "x"),
    ("shoal", "get", "", "pods", "x"),
    ("shoal-models", "list", "", "pods", ""),
    ("default", "list", "serving.kserve.io", "inferenceservices", ""),
    ("kube-system", "get", "", "configmaps", "shoal-controller"),
]


@pytest.fixture(scope="module")
def cluster(api_server: ApiServer, staging: Rendering) -> DynamicClient:
    client = api_server.client()
    for document in staging.of("Namespace", "ServiceAccount", *OF_RIGHTS):
        apply(client, document, dry_run=False)
    settle(client, NEEDED, True)
    return client


@pytest.fixture
def git_source(cluster: DynamicClient) -> Iterator[None]:
    """Apply the git-source component's rights for one test."""
    documents = parse((MANIFESTS / "components" / "git-source" / "rbac.yaml").read_bytes())
    for document in documents:
        apply(cluster, document, dry_run=False)
    settle(cluster, OF_GIT_SOURCE, True)
    yield
    for document in documents:
        plural = f"{document['kind'].lower()}s"
        group = f"/apis/{document['apiVersion']}/namespaces/{document['metadata']['namespace']}/{plural}"
        cluster.request("delete", f"{group}/{document['metadata']['name']}", serializer=lambda _client, data: data)
    settle(cluster, OF_GIT_SOURCE, False)


@pytest.mark.parametrize("right", NEEDED, ids=str)
def test_has_what_it_needs(right: Right, cluster: DynamicClient) -> None:
    assert allowed(cluster, CONTROLLER, right)


@pytest.mark.parametrize("right", [*FORBIDDEN, *OF_GIT_SOURCE], ids=str)
def test_has_nothing_else(right: Right, cluster: DynamicClient) -> None:
    assert not allowed(cluster, CONTROLLER, right)


@pytest.mark.usefixtures("git_source")
def test_delivers_pools_with_the_git_source(cluster: DynamicClient) -> None:
    assert all(allowed(cluster, CONTROLLER, right) for right in OF_GIT_SOURCE)
    assert not any(allowed(cluster, CONTROLLER, right) for right in FORBIDDEN)


@pytest.mark.parametrize("account", ["shoal:gateway", "shoal:registry", "shoal:bus", "shoal-models:default"])
def test_other_accounts_have_no_rights(account: str, cluster: DynamicClient) -> None:
    user = f"system:serviceaccount:{account}"
    rights: list[Right] = [*NEEDED, *OF_GIT_SOURCE, *FORBIDDEN]
    assert [right for right in rights if allowed(cluster, user, right)] == []


def settle(client: DynamicClient, rights: list[Right], wanted: bool) -> None:
    """Wait until the server's authorizer has seen the current roles; at the timeout return, so that the test fails."""
    deadline_s = time.monotonic() + SETTLED_WAIT_S
    while time.monotonic() < deadline_s:
        if all(allowed(client, CONTROLLER, right) is wanted for right in rights):
            return
        time.sleep(0.1)


def allowed(client: DynamicClient, user: str, right: Right) -> bool:
    namespace, verb, group, resource, name = right
    resource, _, subresource = resource.partition("/")
    attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": resource, "name": name}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": {**attributes, "subresource": subresource}},
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    answer = client.request("post", path, body=review, serializer=lambda _client, data: data)
    return bool(answer["status"]["allowed"])
