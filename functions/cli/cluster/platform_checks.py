"""Checks of the cluster on which an installation runs: versions, kinds, settings, nodes. Pure.

These checks also apply to a cluster without an installation; `installation_checks` has the others.
"""

import re
from collections.abc import Iterator, Mapping

from functions.cli.cluster.access import Body, ClusterChoice
from functions.cli.cluster.facts import KNATIVE, KSERVE, OWN_KINDS, ClusterFacts, Items
from functions.cli.cluster.finding import (
    Check,
    DoctorFinding,
    Level,
    condition,
    is_installed,
    labels_of,
    name_of,
    names_of,
    namespace_of,
    unreadable,
)

# Kubernetes 1.29: a native sidecar fetches base weights (manifests/base/models/weights.yaml).
KUBERNETES_LEAST, KNATIVE_LEAST, KSERVE_LEAST = (1, 29), (1, 21), (0, 20)
REVISION_TIMEOUT_S = 900  # the gateway's and the registry's timeoutSeconds
PRODUCTION_FEATURES = ("kubernetes.podspec-priorityclassname", "kubernetes.podspec-topologyspreadconstraints")
ACCELERATORS = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi", "gpu.intel.com/i915", "google.com/tpu")
_ZONE = "topology.kubernetes.io/zone"
# DaemonSets of network plugins that do or do not enforce NetworkPolicies.
_ENFORCING = ("calico-node", "cilium", "antrea-agent", "kube-router", "weave-net", "ovnkube-node", "azure-npm", "anetd")
_NOT_ENFORCING = ("kube-flannel-ds", "kube-flannel")
_PREREQUISITES = "kubectl apply --server-side --field-manager=shoal-prerequisites -k manifests/prerequisites/knative"
_VERSION = re.compile(r"(\d+)\.(\d+)")


def kubernetes_version(facts: ClusterFacts, _: ClusterChoice) -> Iterator[DoctorFinding]:
    yield _at_least("Kubernetes", facts.version, KUBERNETES_LEAST, "upgrade the cluster")


def platforms(facts: ClusterFacts, _: ClusterChoice) -> Iterator[DoctorFinding]:
    """Check that Knative Serving and KServe are installed and new enough."""
    for name, group, namespace, least, home in (
        ("Knative Serving", "serving.knative.dev", KNATIVE, KNATIVE_LEAST, "https://knative.dev/docs/install"),
        ("KServe", "serving.kserve.io", KSERVE, KSERVE_LEAST, "https://kserve.github.io, Standard mode"),
    ):
        if group not in facts.groups:
            yield DoctorFinding(name, "fail", f"{group} is not served", f"install {name}: {home}")
            continue
        if facts.platform is None:
            yield unreadable(name, f"Deployments of {namespace}")
            continue
        found = _version_of([each for each in facts.platform if namespace_of(each) == namespace])
        if found is None:
            yield DoctorFinding(name, "unknown", f"is served, but no Deployment of {namespace} shows its version", "")
        else:
            yield _at_least(name, found, least, f"upgrade {name}")


def knative_settings(facts: ClusterFacts, _: ClusterChoice) -> Iterator[DoctorFinding]:
    if "serving.knative.dev" not in facts.groups:
        return
    if facts.knative is None:
        yield unreadable("Knative's settings", f"ConfigMaps of {KNATIVE}")
        return
    ceiling = facts.knative.get("config-defaults", {}).get("max-revision-timeout-seconds", "600")
    if not ceiling.isdigit() or int(ceiling) < REVISION_TIMEOUT_S:
        words = f"max-revision-timeout-seconds is {ceiling}: Knative refuses the gateway's {REVISION_TIMEOUT_S}"
        yield DoctorFinding("Knative's timeout", "fail", words, _PREREQUISITES)
    else:
        yield DoctorFinding("Knative's timeout", "ok", f"max-revision-timeout-seconds is {ceiling}")
    features = {name: value.lower() for name, value in facts.knative.get("config-features", {}).items()}
    off = [name for name in PRODUCTION_FEATURES if features.get(name) != "enabled"]
    if off:
        words = f"{', '.join(off)} not enabled: the production overlay sets these fields"
        yield DoctorFinding("Knative's features", "warn", words, _PREREQUISITES)
    else:
        yield DoctorFinding("Knative's features", "ok", "those of the production overlay are enabled")


def own_kinds(facts: ClusterFacts, _: ClusterChoice) -> Iterator[DoctorFinding]:
    missing = sorted(set(OWN_KINDS) - facts.own_kinds)
    if missing:
        apply = "kubectl apply --server-side -f manifests/base/crds"
        yield DoctorFinding("shoal's kinds", "fail", f"no CRD of {', '.join(missing)}", apply)
    else:
        yield DoctorFinding("shoal's kinds", "ok", f"all {len(OWN_KINDS)} are served")


def namespaces(facts: ClusterFacts, choice: ClusterChoice) -> Iterator[DoctorFinding]:
    if facts.namespaces is None:
        yield unreadable("namespaces", "namespaces")
        return
    missing = [name for name in (choice.system, choice.models) if name not in names_of(facts.namespaces)]
    if missing:
        apply = "kubectl apply --server-side -f manifests/base/namespaces.yaml"
        yield DoctorFinding("namespaces", "fail", f"there is no {' and no '.join(missing)}", apply)
    else:
        yield DoctorFinding("namespaces", "ok", f"{choice.system} and {choice.models}")
    labels: tuple[tuple[str, Level, str], ...] = (
        (
            "shoal.dev/ingress",
            "fail",
            "NetworkPolicies admit no client: label the namespace of Knative's networking layer",
        ),
        ("shoal.dev/monitoring", "warn", "Prometheus may not scrape: label the namespace that it runs in"),
    )
    for label, level, lost in labels:
        chosen = [name_of(each) for each in facts.namespaces if labels_of(each).get(label) == "true"]
        if chosen:
            yield DoctorFinding(f"label {label}", "ok", ", ".join(chosen))
        else:
            mend = f"kubectl label namespace NAME {label}=true"
            yield DoctorFinding(f"label {label}", level, f"on no namespace: {lost}", mend)


def network_policies(facts: ClusterFacts, choice: ClusterChoice) -> Iterator[DoctorFinding]:
    """Check that NetworkPolicies exist and are enforced, which only the DaemonSet of a known network plugin shows."""
    if facts.daemon_sets is None:
        yield unreadable("NetworkPolicies enforced", "DaemonSets")
    else:
        yield _enforced(facts.daemon_sets)
    if is_installed(facts, choice) and facts.policies is not None:
        denied = {namespace_of(each) for each in facts.policies if name_of(each) == "default-deny"}
        missing = [name for name in (choice.system, choice.models) if name not in denied]
        if missing:
            words = f"no default-deny in {' and '.join(missing)}: engines check no keys"
            yield DoctorFinding("NetworkPolicies", "fail", words, "apply the overlay with its base/network")
        else:
            yield DoctorFinding("NetworkPolicies", "ok", f"{len(facts.policies)}, default deny in both namespaces")


def _enforced(daemon_sets: Items) -> DoctorFinding:
    check, names = "NetworkPolicies enforced", names_of(daemon_sets)
    by = sorted(name for name in names if name.startswith(_ENFORCING))
    if by:
        return DoctorFinding(check, "ok", f"by {', '.join(by)}")
    agents = [each for each in daemon_sets if name_of(each) == "aws-node" and "nodeagent" in str(each["spec"])]
    if agents:
        words = "by aws-node: its agent is installed"
        return DoctorFinding(check, "ok", words)
    plain = sorted(name for name in names if name.startswith(_NOT_ENFORCING))
    if plain:
        words = f"{', '.join(plain)} does not enforce them: anyone in the cluster may call the engines"
        return DoctorFinding(check, "fail", words, "add a plugin that does, such as Calico or Cilium")
    words = "no known network plugin was found"
    return DoctorFinding(
        check, "unknown", words, "try it: a pod of another namespace must not reach an engine's port 8080"
    )


def nodes(facts: ClusterFacts, _: ClusterChoice) -> Iterator[DoctorFinding]:
    if facts.nodes is None:
        yield unreadable("zones", "nodes")
        return
    ready = [each for each in facts.nodes if condition(each, "Ready") == "True"]
    if not facts.nodes:
        yield DoctorFinding("nodes", "fail", "the cluster has none", "join nodes to the cluster")
    elif len(ready) < len(facts.nodes):
        down = sorted(names_of(facts.nodes) - names_of(tuple(ready)))
        yield DoctorFinding("nodes", "warn", f"{len(ready)} of {len(facts.nodes)} are ready, not {', '.join(down[:5])}")
    else:
        yield DoctorFinding("nodes", "ok", f"{len(ready)}, all ready")
    zones = sorted({labels_of(each)[_ZONE] for each in ready if _ZONE in labels_of(each)})
    if len(zones) > 1:
        yield DoctorFinding("zones", "ok", ", ".join(zones))
    else:
        words = f"nodes are in {zones[0]} alone" if zones else f"no node has the label {_ZONE}"
        yield DoctorFinding(
            "zones",
            "warn",
            f"{words}: the loss of one zone stops everything",
            "add nodes in other zones, or label them",
        )


def accelerators(facts: ClusterFacts, _: ClusterChoice) -> Iterator[DoctorFinding]:
    """Check that nodes offer the accelerators that the pools' minimum replicas request."""
    if facts.nodes is None:
        yield unreadable("accelerators", "nodes")
        return
    offered = _sums((each.get("status", {}).get("allocatable", {}) for each in facts.nodes), [1] * len(facts.nodes))
    wanted = _sums(map(_limits, facts.pools or ()), [_replicas(each) for each in facts.pools or ()])
    words = ", ".join(f"{count} {name}" for name, count in offered.items()) or "no node offers one"
    short = [f"{count} {name}, of which there are {offered.get(name, 0)}" for name, count in wanted.items()
             if count > offered.get(name, 0)]  # fmt: skip
    if short:
        mend = "add nodes, install the accelerators' device plugin, or lower minReplicas"
        yield DoctorFinding("accelerators", "fail", f"pools request {'; '.join(short)}", mend)
    elif offered or facts.pools:
        yield DoctorFinding("accelerators", "ok", words)
    else:
        yield DoctorFinding(
            "accelerators", "warn", f"{words}: only the CPU pool of staging runs without", "install the device plugin"
        )


PLATFORM_CHECKS: tuple[Check, ...] = (
    kubernetes_version, platforms, knative_settings, own_kinds, namespaces, network_policies, nodes, accelerators,
)  # fmt: skip


def _at_least(name: str, version: str, least: tuple[int, int], mend: str) -> DoctorFinding:
    match = _VERSION.search(version)
    wanted = ".".join(map(str, least))
    if match is None:
        return DoctorFinding(name, "unknown", f"has the unreadable version {version!r}; {wanted} or later is needed")
    if (int(match[1]), int(match[2])) < least:
        return DoctorFinding(name, "fail", f"{version}; {wanted} or later is needed", mend)
    return DoctorFinding(name, "ok", version)


def _version_of(deployments: list[Body]) -> str | None:
    """Return the version from a label, else from an image's tag, or None."""
    for each in deployments:
        label = str(labels_of(each).get("app.kubernetes.io/version", ""))
        if _VERSION.search(label):
            return label
    images = (c.get("image", "") for each in deployments for c in each["spec"]["template"]["spec"]["containers"])
    tags = (image.rpartition("/")[2].partition("@")[0].rpartition(":")[2] for image in images)
    return next((tag for tag in tags if _VERSION.search(tag)), None)


def _sums(amounts: Iterator[Mapping[str, str]], times: list[int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for amount, count in zip(amounts, times, strict=False):
        for name in ACCELERATORS:
            whole = str(amount.get(name, "0"))
            if whole.isdigit() and int(whole):
                found[name] = found.get(name, 0) + int(whole) * count
    return found


def _limits(pool: Body) -> Mapping[str, str]:
    limits: Mapping[str, str] = pool["spec"]["predictor"].get("model", {}).get("resources", {}).get("limits", {})
    return limits


def _replicas(pool: Body) -> int:
    return int(pool["spec"]["predictor"].get("minReplicas", 1))
