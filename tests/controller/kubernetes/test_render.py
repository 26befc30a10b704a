"""Objects of a configuration that are sent to the cluster, and their order."""

import pytest

from functions.api.kinds.inference_service import InferenceService
from functions.controller.kubernetes.objects import BUDGET, BUDGET_OF_OLD_CLUSTERS, INFERENCE_SERVICE
from functions.controller.kubernetes.render import Autoscaled, DesiredObject, Rendered, render, render_budgets
from tests.controller.kubernetes.fleet import autoscaling, load, pool


def rendered(*documents: str) -> Rendered:
    return render(load(*documents), "main@1")


def services(*documents: str) -> dict[str, DesiredObject]:
    return {
        each.ref.name: each for each in rendered(*documents).desired.objects if each.ref.kind == INFERENCE_SERVICE.kind
    }


def test_a_pool_is_a_service_and_a_budget() -> None:
    desired = rendered(pool("a")).desired
    assert [each.ref.kind for each in desired.objects] == ["PodDisruptionBudget", "InferenceService"]
    assert desired.objects[0].body == {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "a", "namespace": "shoal-models", "labels": {"shoal.dev/pool": "a"}},
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": {"serving.kserve.io/inferenceservice": "a"}},
        },
    }


def test_service_is_sent_as_written() -> None:
    predictor = services(pool("a"))["a"].body["spec"]["predictor"]
    assert predictor == {
        "minReplicas": 2,
        "maxReplicas": 8,
        "model": {
            "modelFormat": {"name": "vLLM"},
            "storageUri": "pvc://shoal-models/a",
            "args": ["--max-model-len=2048", "--enable-lora"],
        },
    }


def test_pool_owner_labels_are_sent_to_the_cluster() -> None:
    """Network policies, node taints and people select the pool's pods by these labels."""
    own = pool("a-acme", annotations="shoal.dev/dedicated-to: acme")
    own = own.replace("shoal.dev/pool: a-acme", "shoal.dev/pool: a-acme, shoal.dev/model: a")
    head = "apiVersion: shoal.dev/v1alpha1\nkind: "
    tier = head + "QuotaPolicy\nmetadata: {name: gold}\nspec: {}\n"
    tenant = head + "Tenant\nmetadata: {name: acme}\nspec: {tier: gold, isolation: {pools: dedicated}}\n"
    metadata = services(pool("a"), own, tier, tenant)["a-acme"].body["metadata"]
    assert metadata["labels"] == {"shoal.dev/pool": "a-acme", "shoal.dev/model": "a"}
    assert metadata["annotations"]["shoal.dev/dedicated-to"] == "acme"


def test_given_namespace_is_kept() -> None:
    there = services(pool("a").replace("  name: a\n", "  name: a\n  namespace: elsewhere\n"))
    assert there["a"].ref.namespace == "elsewhere"
    budgets = [each for each in rendered(pool("a")).desired.objects if each.ref.kind == BUDGET.kind]
    assert {each.ref.namespace for each in budgets} == {"shoal-models"}


def test_server_fields_of_an_exported_object_are_removed() -> None:
    exported = pool("a").replace(
        "metadata:\n",
        'metadata:\n  uid: x\n  resourceVersion: "7"\n  generation: 3\n  managedFields: []\n'
        "  creationTimestamp: null\n  finalizers: [inferenceservice.finalizers]\n",
    )
    exported += "status: {deploymentMode: Standard}\n"
    body = services(exported)["a"].body
    assert sorted(body) == ["apiVersion", "kind", "metadata", "spec"]
    assert sorted(body["metadata"]) == ["annotations", "labels", "name", "namespace"]


def test_service_without_a_pool_is_ignored() -> None:
    assert rendered(pool("a").replace("labels: {shoal.dev/pool: a}", "labels: {}")).desired.objects == ()


def test_autoscaled_pool_is_sent_without_a_number() -> None:
    covered = services(pool("a", replicas=3), autoscaling("a"), pool("b"))
    assert "minReplicas" not in covered["a"].body["spec"]["predictor"]
    assert covered["a"].autoscaled == Autoscaled(seed=3)
    assert covered["b"].autoscaled is None


def test_autoscaled_pool_without_a_number_starts_with_kserves_default() -> None:
    assert services(pool("a", replicas=None), autoscaling("a", least=1))["a"].autoscaled == Autoscaled(seed=1)


def test_controller_annotations_are_read_and_not_sent() -> None:
    service = services(pool("a", annotations='shoal.dev/wave: "7", shoal.dev/prune: disabled'))["a"]
    assert (service.wave, service.keep) == (7, True)
    assert not any("shoal.dev" in name for name in service.body["metadata"]["annotations"])


@pytest.mark.parametrize(
    ("annotation", "found"),
    [
        ('shoal.dev/wave: "100"', '"100"'),
        ('shoal.dev/wave: "-1"', '"-1"'),
        ('shoal.dev/wave: "²"', "allowed: a number from 0 to 99"),
        ("shoal.dev/prune: maybe", '"maybe"'),
    ],
)
def test_misspelt_annotation_is_reported_with_its_location(annotation: str, found: str) -> None:
    (problem,) = rendered(pool("a", annotations=annotation)).problems
    assert found in problem.message
    assert problem.place.line == 6
    assert problem.key_path.startswith("metadata.annotations.shoal.dev/")


def test_service_kserve_would_refuse_is_reported_with_its_location() -> None:
    (problem,) = rendered(pool("a").replace("Class: none", "Class: always")).problems
    assert str(problem).startswith("0.yaml:6")
    assert "hpa, external, keda, none" in problem.message


def test_the_order_of_files_changes_nothing() -> None:
    one, two = rendered(pool("a"), pool("b")).desired, rendered(pool("b"), pool("a")).desired
    assert [each.ref for each in one.objects] == [each.ref for each in two.objects]


def test_waves_order_services_and_budgets_come_first() -> None:
    late = pool("a", annotations='shoal.dev/wave: "2"')
    desired = rendered(late, pool("b")).desired
    assert [(each.wave, each.ref.name) for each in desired.objects] == [(-1, "a"), (-1, "b"), (0, "b"), (2, "a")]


def test_a_budget_is_the_same_object_in_both_versions() -> None:
    old = render(load(pool("a")), "main@1", budget_kind=BUDGET_OF_OLD_CLUSTERS).desired
    assert [each.ref for each in old.objects] == [each.ref for each in rendered(pool("a")).desired.objects]


def test_the_kubernetes_source_gets_budgets_only() -> None:
    loaded = load(pool("a"), pool("b"))
    desired = render_budgets(loaded.objects_of(InferenceService), "kubernetes@1", budget_kind=BUDGET_OF_OLD_CLUSTERS)
    assert [(each.body["apiVersion"], each.ref.name) for each in desired.objects] == [
        ("policy/v1beta1", "a"),
        ("policy/v1beta1", "b"),
    ]
    assert desired.kinds == (BUDGET_OF_OLD_CLUSTERS,)


def test_an_old_cluster_is_sent_no_field_that_it_would_drop() -> None:
    desired = render_budgets(
        load(pool("a")).objects_of(InferenceService), "kubernetes@1", budget_kind=BUDGET_OF_OLD_CLUSTERS
    )
    assert set(desired.objects[0].body["spec"]) == {"maxUnavailable", "selector"}
