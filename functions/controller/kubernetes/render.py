"""Render the desired objects of a cluster from the loaded configuration. Pure and deterministic.

A body contains only what we own. An InferenceService is sent as written, with three exceptions. It gets our namespace
if it names none. Fields that the server owns (status, uid …) are left out, in case of a pasted export. Annotations
for this controller (`shoal.dev/wave`, `shoal.dev/prune`) are read and not sent: KServe copies annotations into the
pod template, so a change of one would restart every replica of the pool
(test_controller_annotations_never_reach_the_cluster).

If an AutoscalingPolicy covers the pool, the autoscaler owns `minReplicas` and the body omits it. Every pool has a
PodDisruptionBudget of one replica at a time. For a pool of one it permits everything.

Waves are applied in ascending order, each after the earlier ones are healthy: budgets first, since they only protect,
then services by the number in their YAML.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from functions.api.declared import Declared, policy_minima
from functions.api.kinds.inference_service import POOL_LABEL, InferenceService
from functions.api.loader import Loaded
from functions.api.problems import Problem, shown
from functions.controller.kubernetes.objects import (
    BUDGET,
    INFERENCE_SERVICE,
    PRUNE_ANNOTATION,
    PRUNE_DISABLED,
    WAVE_ANNOTATION,
    Body,
    Kind,
    ObjectRef,
    mapping_at,
    ref_of,
)
from functions.controller.kubernetes.webhook_rules import findings

BUDGETS_WAVE = -1


@dataclass(frozen=True, slots=True)
class Autoscaled:
    """Mark of a pool whose number of replicas the autoscaler owns. `seed` is the first number.

    It is the service's own number, else the policy's `min`. The loader has checked it against the policy's bounds.
    """

    seed: int


@dataclass(frozen=True, slots=True)
class DesiredObject:
    body: Body
    wave: int
    source: str  # place of its declaration: `inferenceservices/a.yaml:12`
    keep: bool = False  # stays on the cluster when it is no longer desired
    autoscaled: Autoscaled | None = None  # if set, the body has no minReplicas

    @property
    def ref(self) -> ObjectRef:
        return ref_of(self.body)


@dataclass(frozen=True, slots=True)
class Desired:
    """Desired objects of one revision. `kinds` is the scope: other kinds are neither applied nor pruned."""

    revision: str
    kinds: tuple[Kind, ...]
    objects: tuple[DesiredObject, ...]  # in the order of application


def in_apply_order(objects: "list[DesiredObject]") -> tuple[DesiredObject, ...]:
    """Sort objects by wave, then by name, independent of the order of files."""
    return tuple(sorted(objects, key=lambda each: (each.wave, each.ref)))


MODELS_NAMESPACE = "shoal-models"
WAVE_MAX = 99

SERVICE_LABEL = "serving.kserve.io/inferenceservice"  # KServe puts it on the pods
_SENT_METADATA = ("name", "namespace", "labels", "annotations")
_OURS = (WAVE_ANNOTATION, PRUNE_ANNOTATION)


@dataclass(frozen=True, slots=True)
class Rendered:
    desired: Desired
    problems: tuple[Problem, ...]  # objects that KServe would refuse; if there are any, nothing is applied


def render(loaded: Loaded, revision: str, *, namespace: str = MODELS_NAMESPACE, budget_kind: Kind = BUDGET) -> Rendered:
    """Return everything that the git source applies, each pool's service and its budget, and the problems of the
    services."""
    scaled = policy_minima(loaded.objects)
    objects: list[DesiredObject] = []
    problems: list[Problem] = []
    for service in _pools(loaded.objects_of(InferenceService)):
        body = _service_body(service, namespace)
        problems += [service.problem(path, message) for path, message in findings(body)]
        problems += _annotation_problems(service)
        objects.append(_service(service, body, scaled.get(service.value.pool or "")))
        objects.append(_budget(service, body["metadata"]["namespace"], budget_kind))
    return Rendered(
        Desired(revision, (budget_kind, INFERENCE_SERVICE), in_apply_order(objects)), tuple(sorted(problems))
    )


def render_budgets(
    services: Iterable[Declared[InferenceService]],
    revision: str,
    *,
    namespace: str = MODELS_NAMESPACE,
    budget_kind: Kind = BUDGET,
    left_out: Iterable[Body] = (),
) -> Desired:
    """Return what the Kubernetes source applies: budgets only, since other tools deliver the services. `left_out` are
    pools on the cluster that shoal cannot use as they are; their pods are protected too."""
    budgets = []
    for service in _pools(services):
        written = service.document.tree().plain()
        budgets.append(_budget(service, mapping_at(written, "metadata").get("namespace") or namespace, budget_kind))
    for live in left_out:
        head = live["metadata"]
        pool, where = str(mapping_at(head, "labels").get(POOL_LABEL, "")), head.get("namespace") or namespace
        budgets.append(DesiredObject(budget_body(head["name"], pool, where, budget_kind), BUDGETS_WAVE, ""))
    return Desired(revision, (budget_kind,), in_apply_order(budgets))


def _pools(services: Iterable[Declared[InferenceService]]) -> list[Declared[InferenceService]]:
    return [service for service in services if service.value.pool is not None]


def _service_body(service: Declared[InferenceService], namespace: str) -> Body:
    written = service.document.tree().plain()
    metadata = {key: value for key, value in written["metadata"].items() if key in _SENT_METADATA and value}
    metadata.setdefault("namespace", namespace)
    annotations = {key: value for key, value in (metadata.pop("annotations", None) or {}).items() if key not in _OURS}
    if annotations:
        metadata["annotations"] = annotations
    return {
        "apiVersion": written["apiVersion"],
        "kind": written["kind"],
        "metadata": metadata,
        "spec": written["spec"],
    }


def _service(service: Declared[InferenceService], body: Body, policy_min: int | None) -> DesiredObject:
    annotations = service.value.metadata.annotations
    wave = annotations.get(WAVE_ANNOTATION, "0")
    if policy_min is not None:
        predictor = {key: value for key, value in body["spec"]["predictor"].items() if key != "minReplicas"}
        body = {**body, "spec": {**body["spec"], "predictor": predictor}}
    return DesiredObject(
        body=body,
        wave=int(wave) if _is_wave(wave) else 0,
        source=service.source,
        keep=annotations.get(PRUNE_ANNOTATION) == PRUNE_DISABLED,
        autoscaled=Autoscaled(service.value.bounds_under(policy_min)[0]) if policy_min is not None else None,
    )


def _budget(service: Declared[InferenceService], namespace: str, kind: Kind) -> DesiredObject:
    body = budget_body(service.value.metadata.name, str(service.value.pool), namespace, kind)
    return DesiredObject(body, BUDGETS_WAVE, service.source)


def budget_body(name: str, pool: str, namespace: str, kind: Kind) -> Body:
    spec: Body = {"maxUnavailable": 1, "selector": {"matchLabels": {SERVICE_LABEL: name}}}
    if kind == BUDGET:  # pods that crash or load must not block a node's drain for ever
        spec["unhealthyPodEvictionPolicy"] = "AlwaysAllow"
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, "namespace": namespace, "labels": {POOL_LABEL: pool}},
        "spec": spec,
    }


def _annotation_problems(service: Declared[InferenceService]) -> Iterable[Problem]:
    annotations = service.value.metadata.annotations
    wave, prune = annotations.get(WAVE_ANNOTATION), annotations.get(PRUNE_ANNOTATION)
    if wave is not None and not _is_wave(wave):
        message = f'found {shown(wave)}; allowed: a number from 0 to {WAVE_MAX} in quotes, such as "1"'
        yield service.problem(["metadata", "annotations", WAVE_ANNOTATION], message)
    if prune is not None and prune != PRUNE_DISABLED:
        message = f"found {shown(prune)}; allowed: {PRUNE_DISABLED}, or no such annotation"
        yield service.problem(["metadata", "annotations", PRUNE_ANNOTATION], message)


def _is_wave(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 2
