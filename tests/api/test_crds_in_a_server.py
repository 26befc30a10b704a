"""A real API server loads the checked-in CRDs and rejects objects that are invalid by themselves."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes.dynamic.exceptions import DynamicApiError

from functions.api.yaml_documents import read_documents
from tests.api.sources import FILES, ROOT, demo_files
from tests.controller.kubernetes.api_server import ApiServer
from tests.controller.kubernetes.crds import create_crds
from tests.controller.kubernetes.fixtures import TIMEOUT_S

pytestmark = [pytest.mark.servers, pytest.mark.timeout(TIMEOUT_S)]

GROUP = "/apis/shoal.dev/v1alpha1/namespaces/default"
PLURALS = {
    "Tenant": "tenants",
    "Model": "models",
    "QuotaPolicy": "quotapolicies",
    "RoutingPolicy": "routingpolicies",
    "AdmissionPolicy": "admissionpolicies",
    "RolloutPolicy": "rolloutpolicies",
    "AutoscalingPolicy": "autoscalingpolicies",
}


@pytest.fixture(scope="module")
def server(api_server: ApiServer) -> ApiServer:
    files = sorted((ROOT / "manifests" / "base" / "crds").glob("shoal.dev_*.yaml"))
    assert len(create_crds(api_server.client(), *files)) == len(PLURALS)
    return api_server


def sound_objects() -> Iterator[dict[str, Any]]:
    fleet = [file.read_text() for file in (ROOT / "policies" / "fleet").glob("*.yaml")]
    for text in [*FILES.values(), *demo_files().values(), *fleet]:
        for written in read_documents("f", text.encode()).documents:
            if written.value["kind"] in PLURALS:
                yield written.value


def dry_run(server: ApiServer, body: dict[str, Any], verb: str = "post") -> dict[str, Any]:
    path = f"{GROUP}/{PLURALS[body['kind']]}"
    answer: dict[str, Any] = server.client().request(
        verb, path, body=body, query_params=[("dryRun", "All")], serializer=lambda _client, data: data
    )
    return answer


def test_valid_objects_are_stored_unchanged(server: ApiServer) -> None:
    """A structural schema silently prunes unknown fields, so what comes back must equal what was sent."""
    kinds = set()
    for body in sound_objects():
        answer = dry_run(server, copy.deepcopy(body))
        assert answer["spec"] == body["spec"]
        kinds.add(body["kind"])
    assert kinds == set(PLURALS)


WRONG = [
    ("Tenant", {"tier": 8}, "spec.tier"),
    ("Tenant", {}, "spec.tier"),
    ("Tenant", {"tier": "standard", "models": ["a*b"]}, "spec.models"),
    ("Tenant", {"tier": "standard", "keys": [{"id": "a", "hmacSha256": "abc"}]}, "spec.keys"),
    ("Model", {"id": "a/b", "type": "qlora", "versions": []}, "spec.type"),
    ("Model", {"id": "a/b", "type": "lora", "versions": [], "channels": {"stable": 1}}, "spec.channels"),
    ("QuotaPolicy", {"weight": 0}, "spec.weight"),
    ("QuotaPolicy", {"limits": {"requestsPerMinute": "many"}}, "spec.limits.requestsPerMinute"),
    ("RoutingPolicy", {"pools": []}, "spec.pools"),
    ("RoutingPolicy", {"pools": ["*"], "session": {"ttl": "5min"}}, "spec.session.ttl"),
    ("RoutingPolicy", {"pools": ["*"], "retry": {"maxAttempts": 11}}, "spec.retry.maxAttempts"),
    ("AdmissionPolicy", {"bands": {"batch": {"share": 1.5}}}, "spec.bands.batch.share"),
    ("RolloutPolicy", {"stages": [{"percent": 101}]}, "spec.stages"),
    ("AutoscalingPolicy", {"pool": "a", "replicas": {"min": 1}}, "spec.replicas.max"),
]


@pytest.mark.parametrize(("kind", "spec", "says"), WRONG)
def test_objects_invalid_by_themselves_are_rejected(
    server: ApiServer, kind: str, spec: dict[str, Any], says: str
) -> None:
    body = {"apiVersion": "shoal.dev/v1alpha1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    with pytest.raises(DynamicApiError) as caught:
        dry_run(server, body)
    assert caught.value.status == 422
    assert says in str(caught.value.body)


def test_a_tenants_name_is_bounded_by_what_model_ids_need(server: ApiServer) -> None:
    body = {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": "a" * 64},
        "spec": {"tier": "standard"},
    }
    with pytest.raises(DynamicApiError) as caught:
        dry_run(server, body)
    assert caught.value.status == 422


def test_status_is_a_subresource_of_its_own(server: ApiServer) -> None:
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Applied",
        "message": "in force",
        "lastTransitionTime": "2027-01-01T00:00:00Z",
        "observedGeneration": 1,
    }
    body = {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "QuotaPolicy",
        "metadata": {"name": "gold"},
        "spec": {"weight": 2},
        "status": {"observedGeneration": 1, "conditions": [condition]},
    }
    client = server.client()

    def send(verb: str, path: str) -> Any:
        return client.request(verb, f"{GROUP}/{path}", body=body, serializer=lambda _client, data: data)

    try:
        created = send("post", "quotapolicies")
        assert "status" not in created, "the author of an object does not write its status"
        body["metadata"] = created["metadata"]
        written = send("put", "quotapolicies/gold/status")
        assert written["status"] == body["status"]
        assert written["metadata"]["generation"] == 1
    finally:
        client.request("delete", f"{GROUP}/quotapolicies/gold", serializer=lambda _client, data: data)


def test_the_examples_services_are_taken_by_a_server_that_knows_kserve(kserve_server: ApiServer) -> None:
    texts = [file.read_text() for file in (ROOT / "inferenceservices").rglob("*.yaml")]
    bodies = [written.value for text in texts for written in read_documents("f", text.encode()).documents]
    services = [body for body in bodies if body["kind"] == "InferenceService"]
    assert len(services) >= 6
    path = "/apis/serving.kserve.io/v1beta1/namespaces/default/inferenceservices"
    for body in services:
        body["metadata"].pop("namespace", None)
        answer = kserve_server.client().request(
            "post", path, body=body, query_params=[("dryRun", "All")], serializer=lambda _client, data: data
        )
        assert answer["spec"]["predictor"]["minReplicas"] == body["spec"]["predictor"]["minReplicas"]
