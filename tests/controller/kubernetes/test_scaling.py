"""The number of a pool's replicas on a real API server: its field in each deployment mode, and its owner."""

import pytest

from functions.controller.kubernetes import scaling
from functions.controller.kubernetes.errors import Retryable
from functions.controller.kubernetes.objects import AUTOSCALER_MANAGER, DEPLOYMENT, Body, value_at
from functions.controller.kubernetes.ownership import FIELD, owners
from functions.controller.kubernetes.scaling import (
    MIN_SCALE,
    REVISION,
    clamp_replicas,
    write_method_of,
    zero_refusal_reason,
)
from tests.controller.kubernetes.crds import create_crds
from tests.controller.kubernetes.fixtures import Space, create, foreign_crds
from tests.controller.kubernetes.fleet import Fleet, autoscaling, pool

FLUX = "kustomize-controller"
REVISIONS_CRD = "serving.knative.dev_revisions.yaml"


@pytest.fixture
def fleet(space: Space) -> Fleet:
    return Fleet(space)


def live(fleet: Fleet, name: str = "a") -> Body:
    found = fleet.service(name)
    assert found is not None
    return found


def delivered(fleet: Fleet, manager: str, replicas: int | None = 2, annotations: str = "") -> Body:
    """Apply an InferenceService of another party."""
    body = fleet.desired(pool("a", replicas=replicas)).objects[-1].body
    if annotations:
        pairs = dict(pair.split(": ") for pair in annotations.split(", "))
        body = {**body, "metadata": {**body["metadata"], "annotations": pairs}}
    fleet.apply_as(manager, body)
    return live(fleet)


@pytest.mark.servers
def test_pool_from_git_is_scaled_through_the_autoscalers_field(fleet: Fleet) -> None:
    desired = fleet.desired(pool("a", replicas=2), autoscaling("a"))
    fleet.converge(desired)
    written = scaling.write_replicas(fleet.api, live(fleet), 5, "report")
    assert (written.replicas, written.changed, written.contested) == (5, True, "")
    assert fleet.replicas("a") == 5
    assert owners(live(fleet), *FIELD) == {(AUTOSCALER_MANAGER, "Apply")}
    assert fleet.applier.reconcile(desired).written == (), "git leaves the field alone"


@pytest.mark.servers
def test_equal_number_causes_no_write(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(pool("a"), autoscaling("a")))
    scaling.write_replicas(fleet.api, live(fleet), 4, "report")
    before = live(fleet)["metadata"]["resourceVersion"]
    writes = fleet.api.counts.writes
    assert not scaling.write_replicas(fleet.api, live(fleet), 4, "report").changed
    assert fleet.api.counts.writes == writes
    assert live(fleet)["metadata"]["resourceVersion"] == before


@pytest.mark.servers
def test_number_applied_by_flux_is_shared_reported_and_then_owned(fleet: Fleet) -> None:
    delivered(fleet, FLUX, replicas=3)
    written = scaling.write_replicas(fleet.api, live(fleet), 6, "report")
    assert (written.replicas, written.changed) == (3, False)
    assert FLUX in written.contested and "leave minReplicas out" in written.contested
    assert owners(live(fleet), *FIELD) == {(FLUX, "Apply"), (AUTOSCALER_MANAGER, "Apply")}
    delivered(fleet, FLUX, replicas=None)
    assert fleet.replicas("a") == 3, "what was shared does not go when the other lets go"
    assert scaling.write_replicas(fleet.api, live(fleet), 6, "report").changed
    assert fleet.replicas("a") == 6


@pytest.mark.servers
def test_manually_set_number_is_overwritten(fleet: Fleet) -> None:
    delivered(fleet, FLUX, replicas=None)
    path = f"/apis/serving.kserve.io/v1beta1/namespaces/{fleet.space.models}/inferenceservices/a"
    body = {"spec": {"predictor": {"minReplicas": 7}}}
    fleet.space.client.request(
        "patch", path, body=body, content_type="application/merge-patch+json", serializer=lambda _client, data: data
    )
    assert scaling.write_replicas(fleet.api, live(fleet), 2, "report").changed
    assert fleet.replicas("a") == 2


@pytest.mark.servers
def test_declared_number_is_overwritten_with_force(fleet: Fleet) -> None:
    delivered(fleet, FLUX, replicas=3)
    assert scaling.write_replicas(fleet.api, live(fleet), 6, "force").changed
    assert fleet.replicas("a") == 6


@pytest.mark.servers
def test_scaling_does_not_recreate_a_deleted_service(fleet: Fleet) -> None:
    former = delivered(fleet, FLUX, replicas=None)
    path = f"/apis/serving.kserve.io/v1beta1/namespaces/{fleet.space.models}/inferenceservices/a"
    fleet.space.client.request("delete", path, serializer=lambda _client, data: data)
    with pytest.raises(Retryable):
        scaling.write_replicas(fleet.api, former, 6, "report")
    assert fleet.service("a") is None


EXTERNAL = "serving.kserve.io/deploymentMode: Standard, serving.kserve.io/autoscalerClass: external"


@pytest.mark.servers
def test_class_external_is_scaled_by_the_deployments_subresource(fleet: Fleet) -> None:
    service = delivered(fleet, FLUX, replicas=2, annotations=EXTERNAL)
    assert "does not exist yet" in scaling.write_replicas(fleet.api, service, 4, "report").pending
    labels = {"app": "a"}
    create(
        fleet.space.client,
        f"/apis/apps/v1/namespaces/{fleet.space.models}/deployments",
        {
            "metadata": {"name": "a-predictor"},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
            },
        },
    )
    assert scaling.requested_replicas(fleet.api, service) == 1
    assert scaling.write_replicas(fleet.api, service, 4, "report").changed
    deployment = fleet.api.get(DEPLOYMENT, fleet.space.models, "a-predictor")
    assert deployment is not None and deployment["spec"]["replicas"] == 4
    assert fleet.replicas("a") == 2, "KServe's own field stays as it is"
    assert not scaling.write_replicas(fleet.api, service, 4, "report").changed


KNATIVE = "serving.kserve.io/deploymentMode: Knative"


@pytest.fixture
def knative(fleet: Fleet) -> Fleet:
    if not fleet.api.serves(REVISION):
        create_crds(fleet.space.client, foreign_crds() / REVISIONS_CRD)
    return fleet


def revision(fleet: Fleet, name: str, floor: str) -> None:
    body = {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Revision",
        "metadata": {"name": name, "annotations": {MIN_SCALE: floor}},
        "spec": {"containers": [{"image": "vllm"}]},
    }
    create(fleet.space.client, f"/apis/serving.knative.dev/v1/namespaces/{fleet.space.models}/revisions", body)


def floor_of(fleet: Fleet, name: str) -> str:
    found = fleet.api.get(REVISION, fleet.space.models, name)
    assert found is not None
    return str(value_at(found, "metadata", "annotations", MIN_SCALE))


@pytest.mark.servers
def test_knative_scaling_sets_the_floor_on_revisions_with_traffic(knative: Fleet) -> None:
    service = delivered(knative, FLUX, replicas=2, annotations=KNATIVE)
    for name in ("a-1", "a-2", "a-3"):
        revision(knative, name, "2")
    traffic = [{"revisionName": "a-2", "percent": 90}, {"revisionName": "a-3", "percent": 10}]
    routed = {**service, "status": {"components": {"predictor": {"traffic": traffic, "latestReadyRevision": "a-3"}}}}
    before = service["metadata"]["generation"]
    assert scaling.write_replicas(knative.api, routed, 5, "report").changed
    assert [floor_of(knative, name) for name in ("a-1", "a-2", "a-3")] == ["2", "5", "5"]
    assert live(knative)["metadata"]["generation"] == before, "a changed template would be a new revision"
    assert scaling.requested_replicas(knative.api, routed) == 5
    assert not scaling.write_replicas(knative.api, routed, 5, "report").changed


@pytest.mark.servers
def test_knative_scaling_waits_for_a_serving_revision(knative: Fleet) -> None:
    service = delivered(knative, FLUX, annotations=KNATIVE)
    assert "no revision" in scaling.write_replicas(knative.api, service, 5, "report").pending
    revision(knative, "a-9", "2")
    ready = {**service, "status": {"components": {"predictor": {"latestReadyRevision": "a-9"}}}}
    assert scaling.write_replicas(knative.api, ready, 5, "report").changed
    assert floor_of(knative, "a-9") == "5"


def described(mode: str, klass: str | None = None, most: int | None = None) -> Body:
    annotations = {"serving.kserve.io/deploymentMode": mode}
    annotations |= {"serving.kserve.io/autoscalerClass": klass} if klass else {}
    return {"metadata": {"annotations": annotations}, "spec": {"predictor": {"maxReplicas": most} if most else {}}}


@pytest.mark.parametrize(
    ("service", "way"),
    [
        (described("Standard", "none"), "minReplicas"),
        (described("RawDeployment", "none"), "minReplicas"),
        (described("Standard"), "minReplicas"),
        (described("Standard", "keda"), "minReplicas"),
        (described("Standard", "external"), "scale"),
        (described("Knative", "none"), "revision"),
        (described("Serverless"), "revision"),
    ],
)
def test_each_deployment_mode_has_its_scaling_field(service: Body, way: str) -> None:
    assert write_method_of(service) == way


@pytest.mark.parametrize(
    ("service", "asked", "given"),
    [
        (described("Standard", "none", most=4), 6, 4),
        (described("Standard", "none"), 6, 6),
        (described("Standard", "none"), 0, 0),
        (described("Standard", "hpa"), 0, 1),
        (described("Standard", "keda"), 0, 0),
        (described("Knative"), 0, 0),
    ],
)
def test_scaled_number_is_valid_for_kserve(service: Body, asked: int, given: int) -> None:
    assert clamp_replicas(service, asked) == given


def test_hpa_that_keeps_a_pool_above_zero_is_reported_with_a_fix() -> None:
    assert "autoscalerClass: none" in zero_refusal_reason(described("Standard", "hpa"), 0)
    assert not zero_refusal_reason(described("Standard", "none"), 0) and not zero_refusal_reason(
        described("Standard", "hpa"), 1
    )
