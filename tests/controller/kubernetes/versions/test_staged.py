"""Bases that can move in stages on a cluster, and the reasons reported for the others."""

import pytest

from functions.api.loader import Loaded
from functions.controller.kubernetes.versions.staged import stage_findings, staged_bases, staged_ids
from tests.controller.kubernetes.fleet import load
from tests.controller.kubernetes.versions.documents import CAREFUL, SCALED, base, service

TWO = base("v1", "v2")
AT_ONCE = CAREFUL.replace("{percent: 10, duration: 1m}, ", "")


def said(loaded: Loaded, *, delivers: bool = True) -> list[tuple[str, str]]:
    return [(each.reason, str(each)) for each in stage_findings(loaded.objects, delivers=delivers)]


def test_base_with_fetched_weights_moves_in_stages() -> None:
    loaded = load(service(), TWO, CAREFUL)
    staged = staged_bases(loaded.objects)
    assert staged["a"].uris == {"v1": "shoal://a@v1", "v2": "shoal://a@v2"}
    assert (staged["a"].declared_replicas, staged["a"].may_surge, staged["a"].is_scaled) == (2, True, False)
    assert staged_ids(loaded.objects) == {"a"}
    assert said(loaded) == []


@pytest.mark.parametrize(
    ("documents", "why"),
    [
        ((service(mode="Knative"), TWO), "a is in the mode Knative"),
        (
            (service(autoscaler="hpa"), TWO),
            "annotate the InferenceService with serving.kserve.io/autoscalerClass: none",
        ),
        ((service(autoscaler="keda"), TWO), "KServe's own autoscaler (keda)"),
        ((service(autoscaler="external"), TWO), "write an AutoscalingPolicy"),
        (
            (service(uri="pvc://models/a-v1"), base("v1", "v2", artifact="pvc://models/a-{}")),
            'version v1 is at "pvc://models/a-v1"',
        ),
        ((service(uri="s3://shoal-models/bases/a/v1"), TWO), 'storageUri is "s3://shoal-models/bases/a/v1"; set it'),
        ((service(more="workerSpec: {pipelineParallelSize: 2}, "), TWO), "span several nodes"),
    ],
)
def test_base_without_stages_reports_reason_and_fix(documents: tuple[str, ...], why: str) -> None:
    loaded = load(*documents, CAREFUL)
    assert not staged_bases(loaded.objects)
    ((reason, words),) = said(loaded)
    assert reason == "BaseStagesNotObeyed"
    assert why in words, words


def test_autoscaled_base_of_class_external_takes_stages() -> None:
    assert staged_bases(load(service(autoscaler="external"), TWO, SCALED, CAREFUL).objects)["a"].is_scaled


def test_policy_without_stages_reports_nothing() -> None:
    hpa = service(autoscaler="hpa")
    for documents in ((hpa, base("v1"), CAREFUL), (hpa, TWO, AT_ONCE)):
        assert said(load(*documents)) == []


def test_services_of_another_source_move_without_stages() -> None:
    ((reason, words),) = said(load(service(), TWO, CAREFUL), delivers=False)
    assert reason == "BaseStagesNotObeyed"
    assert "only the git source can delay it" in words


def test_storage_uri_behind_the_channel_is_reported() -> None:
    ((reason, words),) = said(load(service(), base("v1", "v2", stable="v2"), CAREFUL))
    assert reason == "StorageUriElsewhere"
    assert words.startswith("spec.predictor.model.storageUri: found shoal://a@v1, but a is at v2")
    assert words.endswith("set it to shoal://a@v2")
