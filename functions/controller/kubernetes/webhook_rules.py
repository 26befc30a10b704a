"""Rules of KServe's webhooks beyond its CRD, so that mistakes are found offline, with file and line.

Source: KServe 0.20, pkg/apis/serving/v1beta1 (validation of InferenceServices). Rules that depend on the cluster's
configuration (Knative's maximal revision timeout, which pod fields its features allow) are left to the server's dry
run. Each rule is one function of the body that yields key paths and messages; all rules always run.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from functions.api.problems import shown
from functions.controller.kubernetes.objects import list_at, mapping_at, value_at

Path = tuple[str | int, ...]
Finding = tuple[Path, str]

MODE_ANNOTATION = "serving.kserve.io/deploymentMode"
AUTOSCALER_ANNOTATION = "serving.kserve.io/autoscalerClass"
MAIN_CONTAINER = "kserve-container"
STANDARD, KNATIVE = "Standard", "Knative"

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_ALIASES = {"RawDeployment": STANDARD, "Serverless": KNATIVE}
_AUTOSCALERS = ("hpa", "external", "keda", "none")
_OLD_FORMATS = (
    "sklearn", "xgboost", "tensorflow", "pytorch", "triton", "onnx", "huggingface", "pmml", "lightgbm", "paddle",
)  # fmt: skip
_METRICS = {KNATIVE: ("concurrency", "rps"), "hpa": ("cpu", "memory")}
_PREDICTOR: Path = ("spec", "predictor")
_NOT_IN_CANARY = ("maxReplicas", "scaleTarget", "scaleMetric", "autoScaling", "workerSpec")
_MULTI_NODE_SIZES = ("pipelineParallelSize", "tensorParallelSize")
_MULTI_NODE_ENV = ("PIPELINE_PARALLEL_SIZE", "TENSOR_PARALLEL_SIZE")


def findings(body: Mapping[str, Any]) -> list[Finding]:
    """Return everything that KServe's webhooks would refuse in this InferenceService; empty if nothing."""
    rules = (_name, _mode, _autoscaler, _implementations, _environment, _scaling, _bounds, _multi_node, _canaries)
    return [finding for rule in rules for finding in rule(body)]


def mode_of(body: Mapping[str, Any]) -> str | None:
    """Return the deployment mode (such as `Standard` or `Knative`, older names translated) of the status, else of the
    annotation, else None."""
    mode = value_at(body, "status", "deploymentMode") or _annotation(body, MODE_ANNOTATION)
    return _ALIASES.get(str(mode), str(mode)) if mode else None


def mode_change(body: Mapping[str, Any], live: Mapping[str, Any]) -> str:
    """Return why this body may not replace the live object, or an empty text, also if either deployment mode is
    unknown."""
    wanted, is_ = mode_of(body), mode_of(live) if value_at(live, "status", "deploymentMode") else None
    if wanted is None or is_ is None or wanted == is_:
        return ""
    return (
        f"the deployment mode of a service cannot change from {is_} to {wanted}; use another name for the new service"
    )


def _annotation(body: Mapping[str, Any], name: str) -> str | None:
    value = mapping_at(body, "metadata", "annotations").get(name)
    return str(value) if value is not None else None


def _predictor(body: Mapping[str, Any]) -> dict[str, Any]:
    return mapping_at(body, "spec", "predictor")


def _name(body: Mapping[str, Any]) -> Iterator[Finding]:
    name = body["metadata"]["name"]
    if _NAME.fullmatch(name) is None:
        yield (
            ("metadata", "name"),
            f"found {shown(name)}; allowed by KServe: a-z 0-9 -, beginning with a letter, ending with one or a digit",
        )


def _mode(body: Mapping[str, Any]) -> Iterator[Finding]:
    mode = _annotation(body, MODE_ANNOTATION)
    if mode is not None and mode not in (STANDARD, KNATIVE, *_ALIASES):
        path = ("metadata", "annotations", MODE_ANNOTATION)
        yield path, f"found {shown(mode)}; allowed: {STANDARD}, {KNATIVE}"


def _autoscaler(body: Mapping[str, Any]) -> Iterator[Finding]:
    autoscaler = _annotation(body, AUTOSCALER_ANNOTATION)
    if autoscaler is not None and autoscaler not in _AUTOSCALERS:
        path = ("metadata", "annotations", AUTOSCALER_ANNOTATION)
        yield path, f"found {shown(autoscaler)}; allowed: {', '.join(_AUTOSCALERS)}"


def _implementations(body: Mapping[str, Any]) -> Iterator[Finding]:
    predictor = _predictor(body)
    found = [key for key in ("model", *_OLD_FORMATS) if predictor.get(key) is not None]
    if any(container.get("name") == MAIN_CONTAINER for container in _dicts(predictor.get("containers"))):
        found.append(f"a container {MAIN_CONTAINER}")
    if len(found) != 1:
        yield _PREDICTOR, f"found {' and '.join(found) or 'no model'}; allowed: exactly one implementation"


def _environment(body: Mapping[str, Any]) -> Iterator[Finding]:
    model = mapping_at(body, "spec", "predictor", "model")
    for index, variable in enumerate(_dicts(model.get("env"))):
        if variable.get("name") == "PYTHONPATH":
            yield (*_PREDICTOR, "model", "env", index, "name"), "KServe forbids the variable PYTHONPATH"


def _scaling(body: Mapping[str, Any]) -> Iterator[Finding]:
    predictor, mode = _predictor(body), mode_of(body)
    autoscaler = _annotation(body, AUTOSCALER_ANNOTATION) or "hpa"
    metric = predictor.get("scaleMetric")
    if mode == KNATIVE and predictor.get("deploymentStrategy") is not None:
        yield (*_PREDICTOR, "deploymentStrategy"), f"is not allowed in the mode {KNATIVE}"
    if metric is None:
        return
    scaled_by = KNATIVE if mode == KNATIVE else autoscaler
    if scaled_by == "keda":
        yield (*_PREDICTOR, "scaleMetric"), "is not allowed with the autoscaler keda; use autoScaling"
    allowed = _METRICS.get(scaled_by, ())
    if allowed and metric not in allowed:
        yield (*_PREDICTOR, "scaleMetric"), f"found {shown(metric)}; allowed here: {', '.join(allowed)}"


def _bounds(body: Mapping[str, Any]) -> Iterator[Finding]:
    least, most = _predictor(body).get("minReplicas"), _predictor(body).get("maxReplicas")
    if isinstance(least, int) and isinstance(most, int) and 0 < most < least:
        yield (*_PREDICTOR, "maxReplicas"), f"found {most}; allowed: at least minReplicas, {least}"


def _multi_node(body: Mapping[str, Any]) -> Iterator[Finding]:
    worker = _predictor(body).get("workerSpec")
    if not isinstance(worker, dict):
        return
    path = (*_PREDICTOR, "workerSpec")
    if mode_of(body) != STANDARD or _annotation(body, AUTOSCALER_ANNOTATION) != "none":
        yield (
            path,
            f"a service that spans several nodes needs {MODE_ANNOTATION}: {STANDARD} and {AUTOSCALER_ANNOTATION}: none",
        )
    uri = value_at(body, "spec", "predictor", "model", "storageUri")
    if uri is not None and not str(uri).startswith(("pvc://", "oci://")):
        yield (*_PREDICTOR, "model", "storageUri"), f"found {shown(uri)}; allowed with workers: pvc:// or oci://"
    if len(_dicts(worker.get("containers"))) > 1:
        yield (*path, "containers"), "a worker has one container"
    for size in _MULTI_NODE_SIZES:
        if isinstance(worker.get(size), int) and worker[size] < 1:
            yield (*path, size), f"found {worker[size]}; allowed: at least 1"
    for index, variable in enumerate(_dicts(list_at(body, "spec", "predictor", "model", "env"))):
        if variable.get("name") in _MULTI_NODE_ENV:
            message = "is set by KServe from workerSpec; leave it out"
            yield (*_PREDICTOR, "model", "env", index, "name"), message


def _canaries(body: Mapping[str, Any]) -> Iterator[Finding]:
    canaries = _dicts(list_at(body, "spec", "canary"))
    if not canaries:
        return
    if _annotation(body, MODE_ANNOTATION) != STANDARD:
        yield ("spec", "canary"), f"needs the annotation {MODE_ANNOTATION}: {STANDARD}"
    percents = [each["trafficPercent"] for each in canaries if isinstance(each.get("trafficPercent"), int)]
    if sum(percents) > 100:
        yield ("spec", "canary"), f"the percentages sum to {sum(percents)}; allowed: up to 100"
    names = [_predictor(body).get("name")]
    for index, each in enumerate(canaries):
        predictor, path = mapping_at(each, "predictor"), ("spec", "canary", index, "predictor")
        name = predictor.get("name")
        if not name or name in names:
            yield (*path, "name"), f"found {shown(name)}; allowed: a name that no other predictor here has"
        names.append(name)
        for key in _NOT_IN_CANARY:
            if predictor.get(key) is not None:
                yield (*path, key), "is not allowed in a canary"
        stable = _predictor(body).get("minReplicas", 1)
        if isinstance(predictor.get("minReplicas"), int) and predictor["minReplicas"] > stable:
            yield (*path, "minReplicas"), f"found {predictor['minReplicas']}; allowed: up to the stable one's, {stable}"


def _dicts(items: Any) -> list[dict[str, Any]]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
