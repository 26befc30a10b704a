"""Drill of a cascade: a small pool in front of the demo's pool, and a threshold so low that every answer is escalated.

The small pool and its cascade are pushed before the load, and removed by a revert.
"""

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from functions.cli.drill.declared import Drill, DrillLoad, Effect
from functions.cli.drill.stage import DrillStage
from functions.cli.refused import CommandRefused

SMALL = "drill-small"
POOL_READY_S = 120.0
_LABEL = "shoal.dev/pool"
_NEVER, _ALWAYS = 20.0, 0.0  # nats a token


def _edit(change: Callable[[list[Any]], None], file: Path) -> None:
    documents = list(yaml.safe_load_all(file.read_text()))
    change(documents)
    file.write_text(yaml.safe_dump_all(documents, sort_keys=False))


def _service(clone: Path) -> tuple[str, dict[str, Any]]:
    for file in sorted((clone / "inferenceservices").rglob("*.yaml")):
        for found in yaml.safe_load_all(file.read_text()):
            labels = found.get("metadata", {}).get("labels", {}) if isinstance(found, dict) else {}
            if labels.get(_LABEL, SMALL) != SMALL and labels.get("shoal.dev/task", "generate") == "generate":
                return str(labels[_LABEL]), found
    raise CommandRefused("the branch has no InferenceService with a pool that generates")


def _small_pool(stage: DrillStage) -> None:
    def change(clone: Path) -> None:
        large, service = _service(clone)
        made = service | {"metadata": service["metadata"] | {"name": SMALL, "labels": {_LABEL: SMALL}}}
        predictor = service["spec"]["predictor"]
        made["spec"] = service["spec"] | {"predictor": predictor | {"minReplicas": 1, "maxReplicas": 1}}
        weights = predictor["model"]["storageUri"]
        model = {
            "apiVersion": "shoal.dev/v1alpha1",
            "kind": "Model",
            "metadata": {"name": SMALL},
            "spec": {
                "id": SMALL,
                "type": "base",
                "versions": [{"name": "v1", "artifact": weights}],
                "channels": {"stable": "v1"},
            },
        }
        (clone / "inferenceservices" / "drill.yaml").write_text(yaml.safe_dump(made, sort_keys=False))
        (clone / "registry" / "drill.yaml").write_text(yaml.safe_dump(model, sort_keys=False))
        (clone / "policies" / "drill.yaml").write_text(_routing(large, _NEVER))
        for file in sorted((clone / "policies").rglob("*.yaml")):
            if any(_is_tenant(each, stage.tenant) for each in yaml.safe_load_all(file.read_text())):
                _edit(lambda documents: _allow(documents, stage.tenant), file)

    stage.push(change, "drill: a small pool before the large one")
    stage.wait_until("the small pool is ready", lambda: _is_ready(stage), POOL_READY_S)


def _routing(large: str, threshold: float) -> str:
    policy = {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "RoutingPolicy",
        "metadata": {"name": "drill"},
        "spec": {"pools": [SMALL], "cascade": [{"from": SMALL, "to": large, "threshold": threshold, "maxTokens": 8}]},
    }
    return yaml.safe_dump(policy, sort_keys=False)


def _is_tenant(document: Any, tenant: str) -> bool:
    return isinstance(document, dict) and document.get("kind") == "Tenant" and document["metadata"]["name"] == tenant


def _allow(documents: list[Any], tenant: str) -> None:
    for each in documents:
        if _is_tenant(each, tenant):
            each["spec"]["models"] = [*each["spec"]["models"], SMALL]


def _is_ready(stage: DrillStage) -> bool:
    status = stage.status()
    phases = [each["phase"] for each in status["replicas"] if each["pool"] == SMALL]
    return bool(status["ready"]) and bool(phases) and set(phases) == {"ready"}


def _keep_nothing(stage: DrillStage) -> None:
    def change(clone: Path) -> None:
        (clone / "policies" / "drill.yaml").write_text(_routing(_service(clone)[0], _ALWAYS))

    stage.push(change, "drill: a threshold that nothing passes")


CASCADE = Drill(
    name="cascade-escalates-everything",
    summary="A cascade's threshold is too low: every answer of the small pool is discarded, and charged.",
    fault="a threshold of 0 nats is pushed",
    taken_back="the push is reverted",
    alert="CascadeEscalatesEverything",
    effect=Effect(
        "answers are escalated",
        "gateway",
        "shoal_cascade_total",
        lambda value: value is not None and value > 0.0,
        labels=MappingProxyType({"verdict": "escalated"}),
        fold="sum",
        grows=True,
    ),
    inject=_keep_nothing,
    prepare=_small_pool,
    load=DrillLoad(requests_per_s=6.0, words=30, models=(SMALL,), another_may_answer=True),
    hold_s=20.0,
    fires_within_s=120.0,
    clears_within_s=120.0,
)

DRILLS = (CASCADE,)
