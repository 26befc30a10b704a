"""Facts about a cluster on which an installation depends. They are read once and evaluated by the checks.

A field is None if the credentials may not read it. A check then reports "unknown".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from functions.cli.cluster.access import Body, Cluster, Forbidden
from functions.cli.cluster.secret_plan import Where
from functions.cli.cluster.secrets import read_secrets

KNATIVE, KSERVE = "knative-serving", "kserve"
KNATIVE_CONFIGS = ("config-defaults", "config-features", "config-network")
OWN_KINDS = (
    "admissionpolicies", "autoscalingpolicies", "models", "quotapolicies", "rolloutpolicies", "routingpolicies",
    "tenants",
)  # fmt: skip
Items = tuple[Body, ...]
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    version: str  # Kubernetes version, such as v1.34.4
    groups: Mapping[str, tuple[str, ...]]  # API groups, with their versions
    own_kinds: frozenset[str]  # kinds of shoal.dev that the server serves
    nodes: Items | None = ()
    namespaces: Items | None = ()
    daemon_sets: Items | None = ()  # DaemonSets of all namespaces
    platform: Items | None = ()  # Deployments of Knative and KServe
    knative: Mapping[str, Mapping[str, str]] | None = None  # ConfigMaps of Knative Serving
    storage_classes: Items | None = ()
    secrets: Mapping[Where, Mapping[str, bytes]] | None = None
    policies: Items | None = ()  # NetworkPolicies of both namespaces
    claims: Items | None = ()  # volumes of the engines' namespace
    jobs: Items | None = ()
    deployments: Items | None = ()  # Deployments of the installation
    stateful_sets: Items | None = ()
    services: Items | None = ()  # Knative Services
    mappings: Items | None = ()  # DomainMappings
    pools: Items | None = ()  # InferenceServices
    runtimes: Items | None = ()
    objects: Items | None = ()  # objects of shoal.dev, with their kinds
    base_facts: frozenset[str] | None = frozenset()  # folders of bases, as the ConfigMap base-facts names them
    pods: Items | None = ()  # Pods of both namespaces


def read(cluster: Cluster) -> ClusterFacts:
    """Read all facts with about forty read requests; those that may not be read are None. Fail if the server does not
    answer."""
    choice = cluster.choice
    system, models = (f"namespaces/{name}" for name in (choice.system, choice.models))

    def items(path: str) -> Items | None:
        return _or_none(lambda: tuple(cluster.list(path)))

    def both(first: str, second: str) -> Items | None:
        return _or_none(lambda: (*cluster.list(first), *cluster.list(second)))

    version = (cluster.get("/version") or {}).get("gitVersion", "")
    groups = {
        group["name"]: tuple(each["version"] for each in group["versions"])
        for group in (cluster.get("/apis") or {}).get("groups", ())
    }
    own = cluster.get("/apis/shoal.dev/v1alpha1") or {}
    return ClusterFacts(
        version=str(version),
        groups=groups,
        own_kinds=frozenset(each["name"] for each in own.get("resources", ()) if "/" not in each["name"]),
        nodes=items("/api/v1/nodes"),
        namespaces=items("/api/v1/namespaces"),
        daemon_sets=items("/apis/apps/v1/daemonsets"),
        platform=both(*(f"/apis/apps/v1/namespaces/{name}/deployments" for name in (KNATIVE, KSERVE))),
        knative=_or_none(lambda: _configs(cluster)),
        storage_classes=items("/apis/storage.k8s.io/v1/storageclasses"),
        secrets=_or_none(lambda: read_secrets(cluster)),
        policies=both(*(f"/apis/networking.k8s.io/v1/{where}/networkpolicies" for where in (system, models))),
        claims=items(f"/api/v1/{models}/persistentvolumeclaims"),
        jobs=items(f"/apis/batch/v1/{system}/jobs"),
        deployments=items(f"/apis/apps/v1/{system}/deployments"),
        stateful_sets=items(f"/apis/apps/v1/{system}/statefulsets"),
        services=items(f"/apis/serving.knative.dev/v1/{system}/services"),
        mappings=items(f"/apis/serving.knative.dev/v1beta1/{system}/domainmappings"),
        pools=items(f"/apis/serving.kserve.io/v1beta1/{models}/inferenceservices"),
        runtimes=items(f"/apis/serving.kserve.io/v1alpha1/{models}/servingruntimes"),
        objects=_or_none(lambda: own_objects(cluster)),
        base_facts=_or_none(lambda: _base_facts(cluster)),
        pods=both(f"/api/v1/{system}/pods", f"/api/v1/{models}/pods"),
    )


def own_objects(cluster: Cluster) -> Items:
    """Return all objects of shoal.dev in the system namespace. Items of a list have no kind, so each gets the
    collection's name as `kind`."""
    found: list[Body] = []
    for plural in OWN_KINDS:
        path = f"/apis/shoal.dev/v1alpha1/namespaces/{cluster.choice.system}/{plural}"
        found += [{**item, "kind": plural} for item in cluster.list(path)]
    return tuple(found)


def _configs(cluster: Cluster) -> dict[str, dict[str, str]]:
    found = {name: cluster.get(f"/api/v1/namespaces/{KNATIVE}/configmaps/{name}") for name in KNATIVE_CONFIGS}
    return {name: body.get("data") or {} for name, body in found.items() if body is not None}


def _base_facts(cluster: Cluster) -> frozenset[str]:
    found = cluster.get(f"/api/v1/namespaces/{cluster.choice.system}/configmaps/base-facts") or {}
    return frozenset((found.get("data") or {}).keys() | (found.get("binaryData") or {}).keys())


def _or_none(read_it: Callable[[], Read]) -> Read | None:
    try:
        return read_it()
    except Forbidden:
        return None
