"""Checks of `shoal doctor`: a correct cluster passes, and each missing part is reported with its remedy."""

from dataclasses import replace
from typing import Any

import pytest
import yaml

from functions.cli.cluster.access import MODELS, SYSTEM, Body, ClusterChoice
from functions.cli.cluster.doctor import findings
from functions.cli.cluster.facts import OWN_KINDS, ClusterFacts
from functions.cli.cluster.finding import Level
from functions.cli.cluster.platform_checks import PRODUCTION_FEATURES, REVISION_TIMEOUT_S
from functions.cli.cluster.secret_plan import FOLLOWERS, KINDS
from tests.manifests.rendering import MANIFESTS, render
from tests.manifests.test_prerequisites import enabled
from tests.manifests.workloads import workloads

CHOICE = ClusterChoice()
READY = {"conditions": [{"type": "Ready", "status": "True"}]}
ZONE = "topology.kubernetes.io/zone"


def body(name: str, namespace: str = SYSTEM, status: Body | None = None, spec: Body | None = None, **meta: Any) -> Body:
    metadata = {"name": name, "namespace": namespace, **meta}
    return {"metadata": metadata, "spec": spec or {}, "status": READY if status is None else status}


def not_ready(reason: str, message: str) -> Body:
    return {"conditions": [{"type": "Ready", "status": "False", "reason": reason, "message": message}]}


def deployment(name: str, namespace: str, image: str = "", **meta: Any) -> Body:
    pod = {"template": {"spec": {"containers": [{"image": image}]}}, "replicas": 2}
    return body(name, namespace, {"readyReplicas": 2}, pod, **meta)


def node(zone: str, accelerators: int = 8) -> Body:
    status = {**READY, "allocatable": {"cpu": "64", "nvidia.com/gpu": str(accelerators)}}
    return body(f"node-{zone}", "", status, labels={ZONE: zone})


def pool(replicas: int = 2, accelerators: int = 4, status: Body | None = None) -> Body:
    model = {"resources": {"limits": {"nvidia.com/gpu": str(accelerators)}}}
    spec = {"predictor": {"minReplicas": replicas, "model": model}}
    return body("llama", MODELS, status, spec, labels={"shoal.dev/pool": "llama"})


def mapping(status: Body | None = None, **annotations: str) -> Body:
    spec = {"ref": {"name": "gateway"}}
    good = {**READY, "url": "https://llm.example.com"}
    return body("llm.example.com", SYSTEM, good if status is None else status, spec, annotations=annotations)


def pod(image: str, running: str, name: str = "gateway") -> Body:
    containers = [{"name": name, "image": image}, {"name": "queue-proxy", "image": "knative/queue:v1.23"}]
    said = [{"name": name, "imageID": f"{image.partition(':')[0]}@{running}"}]
    return body(f"{name}-x", SYSTEM, {"phase": "Running", "containerStatuses": said}, {"containers": containers})


def registry_with(*folders: str, required: bool = False) -> Body:
    items = [{"key": folder, "path": f"{folder}/shoal-base-facts.json"} for folder in folders]
    volume = {"name": "base-facts", "configMap": {"name": "base-facts", "items": items}}
    env = [{"name": "SHOAL_REGISTRY_BASE_FACTS_REQUIRED", "value": "true"}] if required else []
    template = {"spec": {"containers": [{"name": "registry", "env": env}], "volumes": [volume]}}
    return body("registry", spec={"template": template})


ONE, OTHER = (f"sha256:{digit * 64}" for digit in "12")
BASE = {"id": "llama", "type": "base", "versions": [{"name": "v1", "artifact": "pvc://shoal-models/llama-8b"}]}
REDIRECTED = {"networking.knative.dev/http-protocol": "Redirected"}
SECRETS = {place: {kind.key: kind.content.encode()} for kind in KINDS for place in kind.places}
SECRETS |= {each.place: {each.key: each.make("random")} for each in FOLLOWERS}
GATEWAY = body("gateway", labels={"networking.knative.dev/visibility": "cluster-local"})
GOOD = ClusterFacts(
    version="v1.34.4",
    groups={"serving.knative.dev": ("v1",), "serving.kserve.io": ("v1beta1",), "shoal.dev": ("v1alpha1",)},
    own_kinds=frozenset(OWN_KINDS),
    nodes=(node("a"), node("b")),
    namespaces=(
        *(body(name, "") for name in (SYSTEM, MODELS)),
        body("kourier-system", "", labels={"shoal.dev/ingress": "true"}),
        body("monitoring", "", labels={"shoal.dev/monitoring": "true"}),
    ),
    daemon_sets=(body("cilium", "kube-system"),),
    platform=(
        deployment("controller", "knative-serving", labels={"app.kubernetes.io/version": "1.23.0"}),
        deployment("kserve-controller-manager", "kserve", "kserve/kserve-controller:v0.20.1"),
    ),
    knative={
        "config-defaults": {"max-revision-timeout-seconds": "900"},
        "config-features": dict.fromkeys(PRODUCTION_FEATURES, "enabled"),
        "config-network": {},
    },
    storage_classes=(body("nfs", "", annotations={"storageclass.kubernetes.io/is-default-class": "true"}),),
    secrets=SECRETS,
    policies=(body("default-deny"), body("default-deny", MODELS), body("gateway")),
    claims=(body("shoal-models", MODELS, {"phase": "Bound"}),),
    jobs=(body("buckets", SYSTEM, {"conditions": [{"type": "Complete", "status": "True"}]}),),
    deployments=(deployment("controller", SYSTEM),),
    stateful_sets=(body("bus", SYSTEM, {"readyReplicas": 1}, {"replicas": 1}),),
    services=(GATEWAY, registry_with("llama-8b")),
    mappings=(mapping(**REDIRECTED),),
    pools=(pool(),),
    runtimes=(body("shoal-vllm", MODELS),),
    objects=({**body("acme"), "kind": "tenants"}, {**body("llama", spec=BASE), "kind": "models"}),
    base_facts=frozenset({"llama-8b"}),
    pods=(pod(f"x/gateway@{ONE}", ONE),),
)
EMPTY = ClusterFacts("v1.34.4", {}, frozenset(), nodes=(node("a"),), knative={}, secrets={})


def told(facts: ClusterFacts) -> dict[str, tuple[Level, str, str]]:
    return {each.check: (each.level, each.words, each.mend) for each in findings(facts, CHOICE)}


def test_a_cluster_in_order_is_found_so() -> None:
    found = findings(GOOD, CHOICE)
    assert [each for each in found if each.level != "ok"] == []
    assert len({each.check for each in found}) == len(found) > 15, "each says one thing"
    assert not [each for each in found if each.mend], "nothing to mend"


def changed(**facts: Any) -> ClusterFacts:
    return replace(GOOD, **facts)


def without_secret(name: str) -> dict[Any, Any]:
    return {place: data for place, data in SECRETS.items() if place[1] != name}


CASES: list[tuple[ClusterFacts, str, Level, str]] = [
    (changed(version="v1.28.15"), "Kubernetes", "fail", "1.29 or later is needed"),
    (changed(version="devel"), "Kubernetes", "unknown", "has the unreadable version 'devel'"),
    (changed(groups={"serving.kserve.io": ("v1beta1",)}), "Knative Serving", "fail", "is not served"),
    (changed(groups={"serving.knative.dev": ("v1",)}), "KServe", "fail", "is not served"),
    (
        changed(platform=(deployment("controller", "knative-serving", "x/controller:v1.15.2"), GOOD.platform[1])),  # type: ignore[index]
        "Knative Serving",
        "fail",
        "v1.15.2; 1.21 or later is needed",
    ),
    (
        changed(platform=(GOOD.platform[0], deployment("kserve", "kserve", "x/kserve@sha256:00"))),  # type: ignore[index]
        "KServe",
        "unknown",
        "shows its version",
    ),
    (
        changed(knative={**GOOD.knative, "config-defaults": {}}),  # type: ignore[dict-item]
        "Knative's timeout",
        "fail",
        "max-revision-timeout-seconds is 600",
    ),
    (
        changed(knative={**GOOD.knative, "config-features": {}}),  # type: ignore[dict-item]
        "Knative's features",
        "warn",
        "priorityclassname",
    ),
    (changed(own_kinds=frozenset({"tenants"})), "shoal's kinds", "fail", "no CRD of admissionpolicies"),
    (changed(namespaces=GOOD.namespaces[1:]), "namespaces", "fail", "there is no shoal"),  # type: ignore[index]
    (changed(namespaces=GOOD.namespaces[:2]), "label shoal.dev/ingress", "fail", "admit no client"),  # type: ignore[index]
    (changed(namespaces=GOOD.namespaces[:3]), "label shoal.dev/monitoring", "warn", "may not scrape"),  # type: ignore[index]
    (
        changed(daemon_sets=(body("kube-flannel-ds", "kube-flannel"),)),
        "NetworkPolicies enforced",
        "fail",
        "does not enforce them",
    ),
    (changed(daemon_sets=(body("kube-proxy", "x"),)), "NetworkPolicies enforced", "unknown", "no known network plugin"),
    (changed(policies=GOOD.policies[1:]), "NetworkPolicies", "fail", "no default-deny in shoal"),  # type: ignore[index]
    (changed(nodes=()), "nodes", "fail", "the cluster has none"),
    (changed(nodes=(node("a"),)), "zones", "warn", "nodes are in a alone"),
    (
        changed(nodes=(body("n", "", {**READY, "allocatable": {"nvidia.com/gpu": "8"}}),)),
        "zones",
        "warn",
        "has the label",
    ),
    (
        changed(nodes=(node("a"), node("b"), body("c", "", not_ready("x", "y")))),
        "nodes",
        "warn",
        "2 of 3 are ready, not c",
    ),
    (changed(nodes=(node("a", 4), node("b", 0))), "accelerators", "fail", "8 nvidia.com/gpu, of which there are 4"),
    (changed(nodes=(node("a", 0), node("b", 0)), pools=()), "accelerators", "warn", "no node offers one"),
    (changed(claims=(), storage_classes=()), "volume of weights", "warn", "no StorageClass is the default"),
    (
        changed(claims=(body("shoal-models", MODELS, {"phase": "Pending"}),), storage_classes=()),
        "volume of weights",
        "fail",
        "the claim shoal-models is Pending",
    ),
    (changed(secrets=without_secret("shoal-pepper")), "Secrets", "fail", "shoal/shoal-pepper is missing"),
    (
        changed(secrets={**SECRETS, (MODELS, "shoal-s3"): {"s3.json": b"another"}}),
        "Secrets",
        "fail",
        "the copies of both namespaces differ",
    ),
    (changed(jobs=()), "buckets", "unknown", "not tried"),
    (
        changed(jobs=(body("buckets", SYSTEM, {"conditions": [{"type": "Failed", "status": "True"}]}),)),
        "buckets",
        "fail",
        "its log shows what the store lacks",
    ),
    (changed(services=(GATEWAY,)), "registry", "fail", "does not exist"),
    (
        changed(services=(GATEWAY, body("registry", SYSTEM, not_ready("RevisionFailed", "no database")))),
        "registry",
        "fail",
        "RevisionFailed: no database",
    ),
    (changed(deployments=(body("controller", SYSTEM, {}, {"replicas": 2}),)), "controller", "fail", "not ready"),
    (changed(stateful_sets=()), "bus", "fail", "does not exist"),
    (changed(runtimes=()), "runtime", "fail", "no ServingRuntime shoal-vllm"),
    (changed(pools=(pool(status=not_ready("PredictorNotReady", "x")),)), "pool llama", "fail", "PredictorNotReady: x"),
    (
        changed(objects=({**body("acme", SYSTEM, not_ready("Invalid", "unknown tier")), "kind": "tenants"},)),
        "tenants/acme",
        "fail",
        "Invalid: unknown tier",
    ),
    (changed(mappings=()), "public name", "warn", "no HTTPS for clients"),
    (changed(mappings=(mapping(),)), "name llm.example.com", "warn", "plain HTTP is open as well as HTTPS"),
    (
        changed(mappings=(mapping({**READY, "url": "http://llm.example.com"}, **REDIRECTED),)),
        "name llm.example.com",
        "fail",
        "keys are sent unencrypted",
    ),
    (
        changed(mappings=(mapping(not_ready("DomainAlreadyClaimed", "no claim")),)),
        "name llm.example.com",
        "fail",
        "DomainAlreadyClaimed",
    ),
    (changed(services=(body("gateway"), body("registry"))), "gateway's own name", "warn", "is public too"),
    (changed(pods=(pod("x/gateway:1.0", ONE),)), "image gateway", "warn", f"may move; it runs {ONE}"),
    (
        changed(pods=(pod("x/gateway:1.0", ONE), pod("x/gateway:1.0", OTHER))),
        "image gateway",
        "fail",
        f"is 2 images: pods run {ONE}, {OTHER}",
    ),
    (changed(base_facts=frozenset()), "facts of llama", "warn", "are not checked before an engine loads them"),
    (
        changed(base_facts=frozenset(), services=(GATEWAY, registry_with("llama-8b", required=True))),
        "facts of llama",
        "fail",
        "its adapters are refused",
    ),
    (changed(services=(GATEWAY, registry_with())), "facts of llama", "warn", "the registry has none"),
]


@pytest.mark.parametrize(("facts", "check", "level", "words"), CASES, ids=[f"{case[1]}-{case[3]}" for case in CASES])
def test_what_is_missing_is_told(facts: ClusterFacts, check: str, level: Level, words: str) -> None:
    found = told(facts)[check]
    assert (found[0], words in found[1]) == (level, True), found
    if level == "fail" and not check.startswith("tenants/"):  # tenants' messages include the remedy
        assert found[2] or "delete the wrong one" in found[1], "how to mend it"


def test_missing_facts_are_told_with_the_command_that_makes_them() -> None:
    made = "kubectl -n shoal create configmap base-facts --from-file=llama-8b=facts.json"
    mend = told(changed(base_facts=frozenset()))["facts of llama"][2]
    assert mend == f"on the machine with its weights: shoal base facts llama-8b > facts.json; {made}"
    beside = told(changed(base_facts=frozenset({"qwen"})))["facts of llama"][2]
    assert beside.startswith(mend), "and the other bases' facts stay"
    assert beside.endswith("kubectl -n shoal patch configmap base-facts --patch-file /dev/stdin")
    unseen = told(changed(services=(GATEWAY, registry_with())))["facts of llama"][2]
    assert unseen == "add {key: llama-8b, path: llama-8b/shoal-base-facts.json} to the registry's volume base-facts"


UNREADABLE = {
    "pods": "images",
    "base_facts": "base facts",
    "nodes": "zones",
    "namespaces": "namespaces",
    "daemon_sets": "NetworkPolicies enforced",
    "platform": "KServe",
    "knative": "Knative's settings",
    "storage_classes": "volume of weights",
    "secrets": "Secrets",
    "jobs": "buckets",
    "services": "gateway",
    "objects": "objects",
}


@pytest.mark.parametrize(("field", "check"), UNREADABLE.items())
def test_what_may_not_be_read_is_not_known(field: str, check: str) -> None:
    level, words, _ = told(changed(**{field: None}))[check]
    assert level == "unknown"
    assert "may not read" in words


def test_an_empty_cluster_is_told_what_it_lacks_and_nothing_of_an_installation() -> None:
    found = told(EMPTY)
    assert {check for check, (level, _, _) in found.items() if level == "fail"} == {
        "Knative Serving", "KServe", "shoal's kinds", "namespaces", "label shoal.dev/ingress",
    }  # fmt: skip
    assert not {"Secrets", "gateway", "registry", "bus", "NetworkPolicies"} & found.keys()


def test_the_settings_are_those_that_the_prerequisites_make() -> None:
    knative = render(MANIFESTS / "prerequisites" / "knative")
    assert {f"kubernetes.podspec-{name}" for name in enabled(knative)} == set(PRODUCTION_FEATURES)
    ceiling = knative.one("ConfigMap", "config-defaults")["data"]["max-revision-timeout-seconds"]
    assert int(ceiling) == REVISION_TIMEOUT_S


def test_timeouts_and_kinds_are_those_of_the_manifests() -> None:
    production = render(MANIFESTS / "overlays" / "production")
    assert max(each.grace_s for each in workloads(production) if each.knative) == REVISION_TIMEOUT_S
    crds = [yaml.safe_load(file.read_text()) for file in (MANIFESTS / "base" / "crds").glob("*.yaml")]
    assert {crd["spec"]["names"]["plural"] for crd in crds} == set(OWN_KINDS)
