"""Each rule of KServe's webhooks: one object that breaks it, and the reported path."""

from typing import Any

import pytest

from functions.api.problems import path_text
from functions.controller.kubernetes.webhook_rules import findings, mode_change, mode_of


def service(
    name: str = "a", mode: str | None = "Standard", autoscaler: str | None = "none", **predictor: Any
) -> dict[str, Any]:
    annotations = {}
    if mode is not None:
        annotations["serving.kserve.io/deploymentMode"] = mode
    if autoscaler is not None:
        annotations["serving.kserve.io/autoscalerClass"] = autoscaler
    predictor.setdefault("model", {"modelFormat": {"name": "vLLM"}, "storageUri": "pvc://models/a"})
    return {"metadata": {"name": name, "annotations": annotations}, "spec": {"predictor": predictor}}


def canary(*predictors: dict[str, Any], percent: int = 10, mode: str = "Standard") -> dict[str, Any]:
    body = service(mode=mode, name="a", minReplicas=2)
    body["spec"]["predictor"]["name"] = "v3"
    body["spec"]["canary"] = [{"trafficPercent": percent, "predictor": each} for each in predictors]
    return body


MODEL = {"modelFormat": {"name": "vLLM"}}
ENV = {**MODEL, "env": [{"name": "OK"}, {"name": "PYTHONPATH", "value": "/x"}]}
PREDICTOR = "spec.predictor"
MODE = "metadata.annotations.serving.kserve.io/deploymentMode"
AUTOSCALER = "metadata.annotations.serving.kserve.io/autoscalerClass"
WORKERS = {"tensorParallelSize": 4, "pipelineParallelSize": 2, "containers": [{"name": "worker-container"}]}

BROKEN = [
    (service("9a"), "metadata.name"),
    (service("a.b"), "metadata.name"),
    (service("a-"), "metadata.name"),
    (service(mode="standard"), MODE),
    (service(autoscaler="kpa"), AUTOSCALER),
    (service(model=None), PREDICTOR),
    (service(sklearn={}), PREDICTOR),
    (service(containers=[{"name": "kserve-container"}]), PREDICTOR),
    (service(model=ENV), f"{PREDICTOR}.model.env[1].name"),
    (service(mode="Knative", deploymentStrategy={}), f"{PREDICTOR}.deploymentStrategy"),
    (service(mode="Knative", scaleMetric="cpu"), f"{PREDICTOR}.scaleMetric"),
    (service(autoscaler="hpa", scaleMetric="rps"), f"{PREDICTOR}.scaleMetric"),
    (service(autoscaler=None, scaleMetric="rps"), f"{PREDICTOR}.scaleMetric"),
    (service(autoscaler="keda", scaleMetric="cpu"), f"{PREDICTOR}.scaleMetric"),
    (service(minReplicas=3, maxReplicas=2), f"{PREDICTOR}.maxReplicas"),
    (service(autoscaler="hpa", workerSpec=WORKERS), f"{PREDICTOR}.workerSpec"),
    (service(mode="Knative", workerSpec=WORKERS), f"{PREDICTOR}.workerSpec"),
    (service(workerSpec={**WORKERS, "tensorParallelSize": 0}), f"{PREDICTOR}.workerSpec.tensorParallelSize"),
    (service(workerSpec={**WORKERS, "containers": [{}, {}]}), f"{PREDICTOR}.workerSpec.containers"),
    (service(workerSpec=WORKERS, model={**MODEL, "storageUri": "s3://m"}), f"{PREDICTOR}.model.storageUri"),
    (
        service(workerSpec=WORKERS, model={**MODEL, "env": [{"name": "TENSOR_PARALLEL_SIZE"}]}),
        f"{PREDICTOR}.model.env[0].name",
    ),
    (canary({"name": "v4"}, mode="Knative"), "spec.canary"),
    (canary({"name": "v4"}, {"name": "v5"}, percent=60), "spec.canary"),
    (canary({}), "spec.canary[0].predictor.name"),
    (canary({"name": "v3"}), "spec.canary[0].predictor.name"),
    (canary({"name": "v4"}, {"name": "v4"}), "spec.canary[1].predictor.name"),
    (canary({"name": "v4", "maxReplicas": 2}), "spec.canary[0].predictor.maxReplicas"),
    (canary({"name": "v4", "minReplicas": 3}), "spec.canary[0].predictor.minReplicas"),
]


@pytest.mark.parametrize(("body", "path"), BROKEN)
def test_each_broken_webhook_rule_names_its_path(body: dict[str, Any], path: str) -> None:
    assert [path_text(found) for found, _ in findings(body)] == [path]


@pytest.mark.parametrize(
    "body",
    [
        service(),
        service(mode=None, autoscaler=None),
        service(mode="RawDeployment"),
        service(mode="Knative", autoscaler=None, scaleMetric="concurrency"),
        service(autoscaler="hpa", scaleMetric="cpu"),
        service(autoscaler="external", scaleMetric="anything"),
        service(minReplicas=3, maxReplicas=0),
        service(minReplicas=0, maxReplicas=1),
        service(workerSpec=WORKERS),
        service(containers=[{"name": "agent"}]),
        canary({"name": "v4"}, percent=100),
        canary({"name": "v4", "minReplicas": 2}),
    ],
)
def test_valid_kserve_services_pass_the_rules(body: dict[str, Any]) -> None:
    assert findings(body) == []


def test_every_broken_rule_of_an_object_is_reported() -> None:
    body = service("9a", mode="Other", autoscaler="kpa", minReplicas=2, maxReplicas=1)
    assert len(findings(body)) == 4


@pytest.mark.parametrize(
    ("wanted", "is_", "refused"),
    [
        ("Standard", "Standard", False),
        ("RawDeployment", "Standard", False),
        ("Standard", "Knative", True),
        ("Knative", "Standard", True),
        (None, "Knative", False),
        ("Standard", None, False),
    ],
)
def test_the_mode_of_a_live_service_cannot_change(wanted: str | None, is_: str | None, refused: bool) -> None:
    live = service(mode="Knative")
    if is_ is not None:
        live["status"] = {"deploymentMode": is_}
    assert bool(mode_change(service(mode=wanted), live)) is refused


def test_deployment_mode_in_the_status_overrides_the_annotation() -> None:
    assert mode_of({**service(mode="Knative"), "status": {"deploymentMode": "Standard"}}) == "Standard"
    assert mode_of(service(mode=None)) is None
