"""Drills of models and caches: a bad version, many cold adapters, emptied prefix caches, agents with a stale snapshot.

Configuration is changed by a push to the branch, and restored by its revert.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from functions.api.ids import Digest, ModelId, engine_name
from functions.cli.drill.commits import read_branch
from functions.cli.drill.declared import Drill, DrillLoad, Effect
from functions.cli.drill.stage import DrillStage
from functions.cli.refused import CommandRefused
from functions.cli.registry_client import Registry

CATALOGUE = "registry"  # folder of the repository
OUTLIVED_S = 35.0  # a credentials file is read again every 5 s, and an accepted long poll may last 25 s
COLD_MODELS = 24  # two replicas of the demo hold eight each
ROLLOUT = "drill"
_HALF = {
    "apiVersion": "shoal.dev/v1alpha1",
    "kind": "RolloutPolicy",
    "metadata": {"name": ROLLOUT},
    "spec": {
        "stages": [{"percent": 50, "duration": "5m", "autoHalt": ["error_rate > 5%"]}, {"percent": 100}],
        "minRequests": 20,
    },
}


def _some(value: float | None) -> bool:
    return value is not None and value > 0.0


def adapters_in(clone: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for file in sorted((clone / CATALOGUE).rglob("*.yaml")):
        for found in yaml.safe_load_all(file.read_text()):
            if isinstance(found, dict) and found.get("kind") == "Model" and found["spec"].get("type") == "lora":
                yield file, found


def _bad_version(stage: DrillStage) -> None:
    """Move a channel to a declared, unused version with half of the traffic, and make it fail at every engine."""
    model, other = _model_with_two_versions(stage)
    with Registry(stage.context) as registry:
        known = registry.get(f"/v1/models/{model}/versions")
    digest = next(str(each["digest"]) for each in known["data"] if each["name"] == other)
    name = engine_name(ModelId(model), Digest(digest))
    for replica in stage.replicas():
        stage.set_faults(replica, model=name, error_status=500, ratio=1.0)

    def change(clone: Path) -> None:
        for file, found in list(adapters_in(clone)):
            if found["spec"]["id"] == model:
                documents = list(yaml.safe_load_all(file.read_text()))
                for each in documents:
                    if each == found:
                        each["spec"]["channels"]["stable"] = other
                        each["spec"]["rollout"] = ROLLOUT
                file.write_text(yaml.safe_dump_all(documents, sort_keys=False))
        (clone / "policies" / "drill.yaml").write_text(yaml.safe_dump(_HALF, sort_keys=False))

    stage.push(change, f"drill: {model} moves to {other}, which fails")


def _model_with_two_versions(stage: DrillStage) -> tuple[str, str]:
    with read_branch(stage.context.layout.gitops_dir) as clone:
        for _, found in adapters_in(clone):
            spec = found["spec"]
            others = [v["name"] for v in spec["versions"] if v["name"] not in spec["channels"].values()]
            if spec["id"].startswith(f"{stage.tenant}/") and others:
                return str(spec["id"]), str(others[0])
    raise CommandRefused(
        f"no adapter of {stage.tenant} has a version that no channel points at: the drill moves one to it"
    )


BAD_VERSION = Drill(
    name="bad-version",
    summary="A new version fails: it gets half of the traffic until the rollout rolls back automatically.",
    fault="an adapter's channel moves by stages to a version that answers 500, first with half of the traffic",
    taken_back="the push is reverted; the rollout has been rolled back by then",
    alert="BadVersion",
    effect=Effect(
        "requests to the candidate fail", "gateway", "shoal_rollout_failures_total", _some, fold="sum", grows=True
    ),
    inject=_bad_version,
    load=DrillLoad(requests_per_s=6.0, models=("acme/support-bot",)),
    tolerates=frozenset({"failed", "refused"}),
    simulated_only=True,
    fires_within_s=90.0,
    recovers_within_s=90.0,
)

_COLD = tuple(f"acme/drill-{number:02d}" for number in range(COLD_MODELS))


def _many_models(stage: DrillStage) -> None:
    def change(clone: Path) -> None:
        base = next(found for _, found in adapters_in(clone) if found["spec"]["id"].startswith("acme/"))["spec"]
        version = base["versions"][0]
        documents = [
            {
                "apiVersion": "shoal.dev/v1alpha1",
                "kind": "Model",
                "metadata": {"name": model.replace("/", ".")},
                "spec": {
                    "id": model,
                    "type": "lora",
                    "base": base["base"],
                    "versions": [version],
                    "channels": {"stable": version["name"]},
                },
            }
            for model in _COLD
        ]
        (clone / CATALOGUE / "drill.yaml").write_text(yaml.safe_dump_all(documents, sort_keys=False))

    stage.push(change, f"drill: {COLD_MODELS} adapters, more than the replicas have slots for")


COLD_START_STORM = Drill(
    name="cold-start-storm",
    summary="More adapters are requested than there are slots: each load evicts another adapter.",
    fault=f"{COLD_MODELS} adapters in turn, 30 requests a second",
    taken_back="the requests stop, and the adapters are removed from the branch",
    alert="ColdStartStorm",
    effect=Effect(
        "adapters are loaded for waiting requests",
        "gateway",
        "shoal_cold_load_seconds_count",
        _some,
        fold="sum",
        grows=True,
    ),
    inject=lambda stage: None,
    prepare=_many_models,
    load=DrillLoad(requests_per_s=2.0),
    spike=(DrillLoad(requests_per_s=30.0, max_tokens=16, models=_COLD, traffic="cold"),),
    tolerates=frozenset({"refused"}),  # adapter loads block the engines, and both loads share the tenant's queue
    hold_s=20.0,
    fires_within_s=75.0,
)


def _forget(stage: DrillStage) -> None:
    for replica in stage.replicas():
        stage.set_faults(replica, forget_prefixes=True)


ROUTING_THRASH = Drill(
    name="routing-thrash",
    summary="Prefix caches are emptied without an event: requests are sent where their prefix no longer is.",
    fault="engines find no prefix in their caches, and send no event",
    taken_back="they find them again",
    alert="RoutingThrash",
    effect=Effect(
        "prompt tokens were expected in a cache, but missing",
        "gateway",
        "shoal_prefix_misjudged_tokens_total",
        lambda value: value is not None and value > 1_000.0,
        labels=MappingProxyType({"direction": "over"}),
        fold="sum",
        grows=True,
    ),
    inject=_forget,
    load=DrillLoad(requests_per_s=6.0, words=120, shared_words=100, max_tokens=8),
    simulated_only=True,
    hold_s=20.0,
    fires_within_s=120.0,
    clears_within_s=120.0,
)


def _stale_agents(stage: DrillStage) -> None:
    """Give agents a credential that the registry does not know, like after a failed rotation, then push a change.

    The secret that signs heartbeats stays, because otherwise gateways would lose all replicas.
    """
    file = stage.context.layout.credentials("agent")
    credentials = json.loads(file.read_bytes())
    credentials["secrets"]["agent"] = ["0" * 64]
    stage.replace(file, json.dumps(credentials).encode())
    stage.wait(OUTLIVED_S)

    def change(clone: Path) -> None:
        tier = {
            "apiVersion": "shoal.dev/v1alpha1",
            "kind": "QuotaPolicy",
            "metadata": {"name": "drill"},
            "spec": {"weight": 1, "limits": {"requestsPerMinute": 60}},
        }
        (clone / "policies" / "drill.yaml").write_text(yaml.safe_dump(tier, sort_keys=False))

    stage.push(change, "drill: an unused tier, so that there is a new snapshot")


VERSION_DRIFT = Drill(
    name="version-drift",
    summary="The registry refuses the agents, which keep an old snapshot while gateways get new ones.",
    fault="the agents' credential is replaced by one that the registry does not know, then something is pushed",
    taken_back="the credentials are put back and the push is reverted",
    alert="VersionDrift",
    effect=Effect(
        "the registry does not confirm an agent's snapshot",
        "agents",
        "shoal_snapshot_age_seconds",
        lambda value: value is not None and value > 35.0,  # a long poll takes 25
    ),
    inject=_stale_agents,
    tolerates=frozenset(),
    fires_within_s=150.0,
    clears_within_s=120.0,
    recovers_within_s=120.0,
)

DRILLS = (VERSION_DRIFT, ROUTING_THRASH, BAD_VERSION, COLD_START_STORM)
