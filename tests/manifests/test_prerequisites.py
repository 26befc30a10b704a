"""Knative's prerequisites enable every gated field that an overlay uses, and allow its timeouts."""

import pytest

from tests.manifests.rendering import MANIFESTS, Rendering, render
from tests.manifests.workloads import workloads

PROGRESS_DEADLINE = "serving.knative.dev/progress-deadline"

# Pod fields that Knative rejects until their feature is enabled in config-features.
GATED = {
    "affinity": "affinity",
    "dnsConfig": "dnsconfig",
    "dnsPolicy": "dnspolicy",
    "hostAliases": "hostaliases",
    "initContainers": "init-containers",
    "nodeSelector": "nodeselector",
    "priorityClassName": "priorityclassname",
    "runtimeClassName": "runtimeclassname",
    "schedulerName": "schedulername",
    "securityContext": "securitycontext",
    "tolerations": "tolerations",
    "topologySpreadConstraints": "topologyspreadconstraints",
}


@pytest.fixture(scope="module")
def knative() -> Rendering:
    return render(MANIFESTS / "prerequisites" / "knative")


def enabled(knative: Rendering) -> set[str]:
    features = knative.one("ConfigMap", "config-features")["data"].items()
    return {name.removeprefix("kubernetes.podspec-") for name, value in features if value == "enabled"}


def used(rendering: Rendering) -> set[str]:
    pods = [workload.pod for workload in workloads(rendering) if workload.knative]
    fields = {feature for pod in pods for field, feature in GATED.items() if field in pod}
    sources = [
        entry.get("valueFrom", {}) for pod in pods for container in pod["containers"] for entry in container["env"]
    ]
    volumes = [volume for pod in pods for volume in pod["volumes"]]
    fields |= {"fieldref" for source in sources if "fieldRef" in source}
    return fields | {"persistent-volume-claim" for volume in volumes if "persistentVolumeClaim" in volume}


def test_production_uses_what_is_enabled_and_nothing_is_enabled_in_vain(
    knative: Rendering, production: Rendering
) -> None:
    assert used(production) == enabled(knative)


def test_staging_needs_no_feature(staging: Rendering) -> None:
    assert used(staging) == set()


def test_a_gated_field_is_noticed(staging: Rendering) -> None:
    mutated = staging.copied()
    pod = mutated.one("Service", "registry", group="serving.knative.dev")["spec"]["template"]["spec"]
    pod["nodeSelector"] = {"zone": "a"}
    pod["volumes"].append({"name": "state", "persistentVolumeClaim": {"claimName": "state"}})
    assert used(mutated) == {"nodeselector", "persistent-volume-claim"}


def test_timeouts_are_below_the_ceiling(knative: Rendering, staging: Rendering, production: Rendering) -> None:
    ceiling_s = int(knative.one("ConfigMap", "config-defaults")["data"]["max-revision-timeout-seconds"])
    longest_s = [each.grace_s for rendering in (staging, production) for each in workloads(rendering) if each.knative]
    assert max(longest_s) == ceiling_s, "raised no further than it is needed"


def test_a_first_revision_is_not_given_up_while_somebody_mends_the_installation(
    staging: Rendering, production: Rendering
) -> None:
    """Knative deletes the pods of a revision that is not ready in time and does not recreate them."""
    services = [
        each
        for rendering in (staging, production)
        for each in rendering.of("Service")
        if "template" in each["spec"]  # Knative's
    ]
    deadlines = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["annotations"].get(PROGRESS_DEADLINE)
        for each in services
    }
    assert deadlines == {"gateway": "40m", "registry": "40m"}
