"""Bases whose versions have replicas of their own on a cluster, and why other bases' have not. Pure.

The pool's InferenceService needs Standard mode, a number of replicas that is ours to write, `shoal://` weights, and a
storageUri that is one of the versions. A replica reports which weights it has loaded only for `shoal://`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from functions.api.consistency.everything import Everything, sorted_out
from functions.api.declared import Accepted, Declared
from functions.api.ids import ModelId
from functions.api.kinds.catalogue import AnyObject
from functions.api.kinds.inference_service import InferenceService
from functions.api.kinds.model import Model
from functions.api.problems import shown
from functions.artifacts.locations import WEIGHTS_SCHEME, weights_at
from functions.controller.kubernetes.webhook_rules import AUTOSCALER_ANNOTATION, MODE_ANNOTATION, STANDARD, mode_of
from functions.controller.unobeyed.findings import Unobeyed, unobeyed

REASON, ELSEWHERE = "BaseStagesNotObeyed", "StorageUriElsewhere"
_NUMBER_IS_OURS = f"annotate the InferenceService with {AUTOSCALER_ANNOTATION}: none"


@dataclass(frozen=True, slots=True)
class StagedBase:
    """A base whose versions have replicas of their own. Its id is also its pool's name."""

    model: Declared[Model]
    service: Declared[InferenceService]
    uris: Mapping[str, str]  # storageUri of each version, by its name
    is_scaled: bool  # an AutoscalingPolicy sets its number

    @property
    def may_surge(self) -> bool:
        return self.service.value.spec.predictor.may_surge

    @property
    def declared_replicas(self) -> int:
        return self.service.value.bounds_under(None)[0]


def weights_uri(uri: str) -> str:
    """Return `shoal://NAME@VERSION` for a storageUri or an artifact that names such weights; else an empty text."""
    weights = weights_at(uri)
    return weights.uri if weights is not None else ""


def served_uri(storage_uri: str | None) -> str:
    """Return `shoal://NAME@VERSION` if the storageUri names such weights, else an empty text, also for `s3://`: KServe
    itself fetches that, then no replica reports what it loaded."""
    return weights_uri(storage_uri) if storage_uri is not None and storage_uri.startswith(WEIGHTS_SCHEME) else ""


def staged_bases(objects: Iterable[Declared[AnyObject]]) -> dict[str, StagedBase]:
    """Return the staged bases (those whose versions move in stages) by pool."""
    everything = _written(objects)
    return {
        pool: _staged(model, service, everything)
        for pool, model, service in _bases(everything)
        if not _obstacle(model.value, service.value, is_scaled=_is_scaled(pool, everything))
    }


def staged_ids(objects: Iterable[Declared[AnyObject]]) -> frozenset[ModelId]:
    """Return the model ids of the staged bases, which equal the names of their pools."""
    return frozenset(map(ModelId, staged_bases(objects)))


def stage_findings(objects: Iterable[Declared[AnyObject]], *, delivers: bool) -> Iterator[Unobeyed]:
    """Yield stages that are not applied, and a storageUri that differs from the pool's channel. `delivers`: the
    controller writes the InferenceServices, so that a storageUri can wait for its turn."""
    everything = _written(objects)
    for pool, model, service in _bases(everything):
        if delivers:
            why = _obstacle(model.value, service.value, is_scaled=_is_scaled(pool, everything))
        else:
            why = (
                "with the kubernetes source, storageUri changes when it is delivered; only the git source can delay it"
            )
        if why:
            yield from _without_stages(model, everything, why)
        elif elsewhere := _elsewhere(model.value, service.value):
            yield unobeyed(service, ("spec", "predictor", "model", "storageUri"), ELSEWHERE, elsewhere)


def _without_stages(model: Declared[Model], everything: Everything, why: str) -> Iterator[Unobeyed]:
    spec = model.value.spec
    policies = {policy.value.metadata.name: policy.value for policy in everything.rollouts}
    policy = policies.get(spec.rollout)
    if len(spec.versions) > 1 and (policy is None or len(policy.spec.stages) > 1):
        message = (
            f"found {spec.rollout}, whose stages do not apply to this base: {why}. Until then its channel moves as a "
            "whole once half of its replicas have loaded the new version, without a control group or autoHalt: change "
            "storageUri in the same commit, watch it, and push the old version to roll back"
        )
        yield unobeyed(model, ("spec", "rollout"), REASON, message)


def _written(objects: Iterable[Declared[AnyObject]]) -> Everything:
    return sorted_out(each for each in objects if not isinstance(each, Accepted))


def _bases(everything: Everything) -> Iterator[tuple[str, Declared[Model], Declared[InferenceService]]]:
    """Yield the bases that bear their pool's name: a tenant's own base never has stages."""
    pools = everything.pools()
    for model in everything.models:
        pool = model.value.spec.id
        if model.value.spec.type == "base" and pool in pools:
            yield pool, model, pools[pool]


def _is_scaled(pool: str, everything: Everything) -> bool:
    return any(policy.value.spec.pool == pool for policy in everything.autoscaling)


def _staged(model: Declared[Model], service: Declared[InferenceService], everything: Everything) -> StagedBase:
    uris = {version.name: weights_uri(version.artifact) for version in model.value.spec.versions}
    return StagedBase(model, service, uris, _is_scaled(model.value.spec.id, everything))


def _obstacle(model: Model, service: InferenceService, *, is_scaled: bool) -> str:
    """Return why the base has no stages, and what to do; otherwise an empty text."""
    annotations, predictor = service.metadata.annotations, service.spec.predictor
    mode = mode_of({"metadata": {"annotations": annotations}})
    if mode != STANDARD:
        return (
            f"{service.metadata.name} is in the mode {mode or 'that the cluster sets'}, in which the number of "
            f"replicas is not fixed; annotate it with {MODE_ANNOTATION}: {STANDARD}"
        )
    if predictor.worker_spec is not None:
        return "its replicas span several nodes (workerSpec), for which KServe loads weights only from a volume"
    autoscaler = annotations.get(AUTOSCALER_ANNOTATION, "hpa")
    if autoscaler == "external" and not is_scaled:
        return f"another tool sets the number of replicas (external); write an AutoscalingPolicy, or {_NUMBER_IS_OURS}"
    if autoscaler not in {"none", "external"}:
        return f"KServe's own autoscaler ({autoscaler}) sets the number of replicas; {_NUMBER_IS_OURS}"
    for version in model.spec.versions:
        if not weights_uri(version.artifact):
            return (
                f"version {version.name} is at {shown(version.artifact)}, and replicas report a loaded version only of "
                f"{WEIGHTS_SCHEME} weights; push it with `shoal base push` and use the address that it prints"
            )
    return _unknown_uri(model, predictor.model.storage_uri if predictor.model is not None else None)


def _unknown_uri(model: Model, uri: str | None) -> str:
    if served_uri(uri) in {weights_uri(version.artifact) for version in model.spec.versions}:
        return ""
    return f"storageUri is {shown(uri or 'nothing')}; set it to one of the base's versions (shoal://NAME@VERSION)"


def _elsewhere(model: Model, service: InferenceService) -> str:
    """Return how storageUri differs from the version of the main channel (`stable`, or else the first by name), or an
    empty text."""
    channels = model.spec.channels
    main = channels.get("stable") or next((channels[name] for name in sorted(channels)), None)
    served = service.spec.predictor.model
    wanted = next((weights_uri(version.artifact) for version in model.spec.versions if version.name == main), "")
    if served is None or not wanted or served_uri(served.storage_uri) == wanted:
        return ""
    return (
        f"found {served.storage_uri}, but {model.spec.id} is at {main}: a second InferenceService has its replicas "
        f"and this one has none; set it to {wanted}"
    )
