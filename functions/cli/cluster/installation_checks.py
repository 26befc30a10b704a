"""Checks of an installation: its volume, Secrets, buckets, processes, pools, objects and public name. Pure.

`platform_checks` checks the cluster itself.
"""

from collections.abc import Callable, Iterator

from functions.api.kinds.inference_service import is_pool
from functions.cli.cluster.access import Body, ClusterChoice
from functions.cli.cluster.facts import ClusterFacts, Items
from functions.cli.cluster.finding import (
    Check,
    DoctorFinding,
    Level,
    condition,
    first_reason,
    is_installed,
    labels_of,
    name_of,
    names_of,
    unreadable,
)
from functions.cli.cluster.secret_plan import plan

_APPLY = "kubectl apply --server-side -k YOUR_OVERLAY"
_HTTPS = "components/public-https, or public-https-cert-manager, in your overlay"


def storage(facts: ClusterFacts, choice: ClusterChoice) -> Iterator[DoctorFinding]:
    if facts.storage_classes is None or facts.claims is None:
        yield unreadable("volume of weights", "StorageClasses or claims")
        return
    claim = next((each for each in facts.claims if name_of(each) == "shoal-models"), None)
    default = "storageclass.kubernetes.io/is-default-class"
    has_default = any(each["metadata"].get("annotations", {}).get(default) == "true" for each in facts.storage_classes)
    if claim is not None:
        phase = claim.get("status", {}).get("phase", "Pending")
        if phase == "Bound":
            yield DoctorFinding("volume of weights", "ok", "the claim shoal-models is bound")
        else:
            mend = "a ReadWriteMany class that is the default, storageClassName in the overlay, or a volume of yours"
            yield DoctorFinding(
                "volume of weights", "warn" if has_default else "fail", f"the claim shoal-models is {phase}", mend
            )
    elif has_default:
        yield DoctorFinding("volume of weights", "ok", "there is a default StorageClass; the claim wants ReadWriteMany")
    else:
        mend = "mark a ReadWriteMany class as default, or set storageClassName of the claim in your overlay"
        yield DoctorFinding(
            "volume of weights", "warn", "no StorageClass is the default, and the claim names none", mend
        )


def secrets(facts: ClusterFacts, choice: ClusterChoice) -> Iterator[DoctorFinding]:
    if facts.secrets is None:
        yield unreadable("Secrets", "Secrets")
        return
    if not is_installed(facts, choice):
        return
    steps = plan(facts.secrets, {}, lambda: b"made")
    for step in steps:
        if step.do == "unused":
            yield DoctorFinding(
                "Secrets", "warn", f"{_role(choice, step.namespace)}/{step.name} is no longer used", step.words
            )
    wrong = [step for step in steps if step.do not in ("keep", "unused")]
    if not wrong:
        yield DoctorFinding("Secrets", "ok", f"all {len(facts.secrets)} exist, and both namespaces agree")
        return
    for step in wrong:
        where = f"{_role(choice, step.namespace)}/{step.name}"
        words = step.words if step.do in ("clash", "renew") else "is missing"
        yield DoctorFinding("Secrets", "fail", f"{where} {words}", "" if step.do == "clash" else "shoal secrets")


def buckets(facts: ClusterFacts, choice: ClusterChoice) -> Iterator[DoctorFinding]:
    """Check the result of the Job that creates and tests the buckets. Only pods of the cluster can reach the store."""
    run = "kubectl apply -k manifests/jobs/buckets"
    if facts.jobs is None:
        yield unreadable("buckets", "Jobs")
        return
    job = next((each for each in facts.jobs if name_of(each) == "buckets"), None)
    if job is None:
        yield DoctorFinding("buckets", "unknown", "not tried in the last hour", run)
    elif condition(job, "Complete") == "True":
        yield DoctorFinding("buckets", "ok", "both exist, and support conditional writes")
    elif condition(job, "Failed") == "True":
        words = "the Job failed; its log shows what the store lacks"
        yield DoctorFinding("buckets", "fail", words, f"kubectl -n {choice.system} logs job/buckets")
    else:
        yield DoctorFinding("buckets", "unknown", "the Job runs", "run this again in a minute")


def processes(facts: ClusterFacts, choice: ClusterChoice) -> Iterator[DoctorFinding]:
    """Check that gateway, registry, controller and bus exist and are ready; check nothing if shoal is not installed."""
    if not is_installed(facts, choice):
        return
    for name, items in (("gateway", facts.services), ("registry", facts.services)):
        yield from _process(name, items, lambda each: condition(each, "Ready") == "True", choice)
    yield from _process("controller", facts.deployments, _all_ready, choice)
    yield from _process("bus", facts.stateful_sets, _all_ready, choice)


def _process(
    name: str, items: Items | None, is_ready: Callable[[Body], bool], choice: ClusterChoice
) -> Iterator[DoctorFinding]:
    if items is None:
        yield unreadable(name, "it")
        return
    found = next((each for each in items if name_of(each) == name), None)
    if found is None:
        yield DoctorFinding(name, "fail", "does not exist", _APPLY)
    elif is_ready(found):
        yield DoctorFinding(name, "ok", "ready")
    else:
        words = first_reason(found) or "not ready"
        yield DoctorFinding(name, "fail", words, f"kubectl -n {choice.system} get pods, and their logs")


def pools(facts: ClusterFacts, choice: ClusterChoice) -> Iterator[DoctorFinding]:
    if not is_installed(facts, choice):
        return
    if facts.runtimes is not None and "shoal-vllm" not in names_of(facts.runtimes):
        words = f"no ServingRuntime shoal-vllm in {choice.models}: no agent would run beside engines"
        yield DoctorFinding("runtime", "fail", words, _APPLY)
    for each in facts.pools or ():
        if not is_pool(labels_of(each)):
            continue
        level: Level = "ok" if condition(each, "Ready") == "True" else "fail"
        words = "ready" if level == "ok" else first_reason(each) or "not ready"
        mend = "" if level == "ok" else f"kubectl -n {choice.models} get pods, and their logs"
        yield DoctorFinding(f"pool {name_of(each)}", level, words, mend)


def objects(facts: ClusterFacts, choice: ClusterChoice) -> Iterator[DoctorFinding]:
    """Report the first ten tenants, policies and models that are not ready, with the controller's message, or that none
    is."""
    if facts.objects is None:
        yield unreadable("objects", "objects of shoal.dev")
        return
    refused = [each for each in facts.objects if condition(each, "Ready") == "False"]
    for each in refused[:10]:
        yield DoctorFinding(f"{each['kind']}/{name_of(each)}", "fail", first_reason(each) or "not ready")
    if facts.objects and not refused:
        yield DoctorFinding("objects", "ok", f"{len(facts.objects)} tenants, policies and models; none is refused")


def public_name(facts: ClusterFacts, choice: ClusterChoice) -> Iterator[DoctorFinding]:
    """Check that clients have HTTPS and that plain HTTP is redirected."""
    gateway = next((each for each in facts.services or () if name_of(each) == "gateway"), None)
    if gateway is None or facts.mappings is None:
        return
    mapped = [each for each in facts.mappings if each["spec"]["ref"]["name"] == "gateway"]
    if not mapped:
        yield DoctorFinding("public name", "warn", "the gateway has no name of its own: no HTTPS for clients", _HTTPS)
    network = (facts.knative or {}).get("config-network", {}).get("http-protocol", "Enabled").lower()
    for each in mapped:
        annotated = each["metadata"].get("annotations", {}).get("networking.knative.dev/http-protocol", network)
        url = str(each.get("status", {}).get("url", ""))
        if condition(each, "Ready") != "True":
            yield DoctorFinding(f"name {name_of(each)}", "fail", first_reason(each) or "not ready", _HTTPS)
        elif not url.startswith("https://"):
            yield DoctorFinding(
                f"name {name_of(each)}", "fail", "has no certificate: keys are sent unencrypted", _HTTPS
            )
        elif annotated.lower() != "redirected":
            yield DoctorFinding(f"name {name_of(each)}", "warn", "plain HTTP is open as well as HTTPS", _HTTPS)
        else:
            yield DoctorFinding(f"name {name_of(each)}", "ok", f"{url}, plain HTTP redirected")
    if (
        mapped
        and labels_of(gateway).get("networking.knative.dev/visibility") != "cluster-local"
        and network != "redirected"
    ):
        words = "the gateway's own name is public too, and accepts unencrypted keys"
        yield DoctorFinding("gateway's own name", "warn", words, _HTTPS)


INSTALLATION_CHECKS: tuple[Check, ...] = (storage, secrets, buckets, processes, pools, objects, public_name)


def _all_ready(workload: Body) -> bool:
    wanted = int(workload["spec"].get("replicas", 1))
    return int(workload.get("status", {}).get("readyReplicas", 0)) >= wanted


def _role(choice: ClusterChoice, namespace: str) -> str:
    return choice.models if namespace == ClusterChoice().models else choice.system
