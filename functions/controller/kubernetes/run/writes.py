"""Decide which statuses and finalizers to write after one observation, without I/O.

A finalizer is added only where it protects something, since each costs a write:

    QuotaPolicy, RolloutPolicy   while a tenant, model or routing policy in force references it, it stays in force
    Model                        its deletion ends only when the snapshot without it is published; artifacts that are
                                 removed afterwards serve no request that is still routed

Tenants have none: nothing has to be cleaned up, their keys end with the snapshot in any case, and 50,000 of them
would cost as many writes. InferenceServices belong to others and are not written.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

import orjson

from functions.controller.kubernetes.objects import Kind, condition, list_at
from functions.controller.kubernetes.run import conditions
from functions.controller.kubernetes.run.conditions import ObjectStatus, ScalingStatus
from functions.controller.kubernetes.run.cr_source import ObservedResources, SeenObject
from functions.controller.kubernetes.run.obedience import NOTHING_KNOWN, ObedienceFindings
from functions.controller.kubernetes.run.object_store import WatchedObject
from functions.decisions.rollout.lifecycle import Rollout
from functions.decisions.rollout.messages import rollout_text

FINALIZER = "shoal.dev/in-force"
PROTECTED = frozenset({"QuotaPolicy", "RolloutPolicy", "Model"})
_NAMED_MAX = 3


@dataclass(frozen=True, slots=True)
class PublicationState:
    """Result of publishing an observation: are its objects in force, and if not, why not yet."""

    in_force: bool
    reason: str = ""
    message: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)  # by key: valid, but not in the snapshot yet
    rollouts: Mapping[str, Rollout] = field(default_factory=dict)  # by key: under way or halted
    refused: Mapping[str, str] = field(default_factory=dict)  # by key: would change versions that the API serves


@dataclass(frozen=True, slots=True)
class StatusWrite:
    """One write to one object: a status, or its complete list of finalizers."""

    key: str
    kind: Kind
    stored: WatchedObject
    what: Literal["status", "finalizers"]
    object_status: ObjectStatus | None = None
    finalizers: tuple[str, ...] = ()


def writes_after(
    looked: ObservedResources,
    publication: PublicationState,
    *,
    protect: bool = True,
    scaling: Mapping[str, ScalingStatus] = MappingProxyType({}),
    judgement: ObedienceFindings = NOTHING_KNOWN,
) -> Iterator[StatusWrite]:
    """Yield the writes of statuses and finalizers that may be due, none for InferenceServices; the writer skips those
    already done. `scaling` is by AutoscalingPolicy's name. `judgement` has the policies that are not obeyed."""
    for key, seen in looked.seen.items():
        if seen.watched.kind == "InferenceService":
            continue
        kind, stored = Kind(seen.watched.api_version, seen.watched.kind), seen.stored
        finalizers = _finalizers(seen, publication, protect)
        if finalizers != stored.finalizers:
            yield StatusWrite(key, kind, stored, "finalizers", finalizers=finalizers)
        if not stored.deleting or seen.held_by:
            object_status = _object_status(key, seen, looked, publication, publication.left_out.get(key, ""))
            if object_status is not None:
                object_status = _with_obedience(key, _with_details(object_status, seen, scaling), seen, judgement)
                yield StatusWrite(key, kind, stored, "status", object_status=object_status)


def _finalizers(seen: SeenObject, publication: PublicationState, protect: bool) -> tuple[str, ...]:
    stored = seen.stored
    others = tuple(each for each in stored.finalizers if each != FINALIZER)
    if seen.watched.kind not in PROTECTED:
        return stored.finalizers
    if not protect:
        return others
    if not stored.deleting:
        return stored.finalizers if FINALIZER in stored.finalizers else (*others, FINALIZER)
    may_go = publication.in_force and not seen.held_by
    return others if may_go else stored.finalizers


def _object_status(
    key: str, seen: SeenObject, looked: ObservedResources, publication: PublicationState, left_out: str
) -> ObjectStatus | None:
    if seen.held_by:
        first = ", ".join(seen.held_by[:_NAMED_MAX])
        more = f" and {len(seen.held_by) - _NAMED_MAX} more" if len(seen.held_by) > _NAMED_MAX else ""
        return conditions.deletion_waits_status(
            f"deletion waits: {first}{more} still reference it; change or delete them first"
        )
    if (refused := _refused(key, looked, publication)) is not None:
        return refused
    if left_out:
        return conditions.waiting_status("ArtifactMissing", left_out)
    if publication.in_force:
        return _in_force(publication.rollouts.get(key))
    if conditions.is_published(seen.stored.status, seen.stored.generation):
        return None  # already in force; a late publication does not change that
    return conditions.waiting_status(publication.reason, publication.message)


def _with_details(object_status: ObjectStatus, seen: SeenObject, scaling: Mapping[str, ScalingStatus]) -> ObjectStatus:
    """Return the status with the fields that `kubectl get` shows besides the conditions: an AutoscalingPolicy's
    numbers, a RolloutPolicy's stages."""
    if seen.watched.kind == "AutoscalingPolicy" and seen.stored.name in scaling:
        return conditions.with_scaling(object_status, scaling[seen.stored.name])
    if seen.watched.kind == "RolloutPolicy":
        stages = list_at(orjson.loads(seen.stored.document), "spec", "stages")
        percents = [str(stage["percent"]) for stage in stages if isinstance(stage, dict) and "percent" in stage]
        return replace(object_status, fields={"stages": ",".join(percents)})
    return object_status


def _with_obedience(
    key: str, object_status: ObjectStatus, seen: SeenObject, judgement: ObedienceFindings
) -> ObjectStatus:
    """Return the status with the Obeyed condition if the object is not obeyed, or was not and is known to be again."""
    if findings := judgement.findings.get(key):
        return conditions.with_findings(object_status, findings)
    before = condition({"status": dict(seen.stored.status)}, "Obeyed") or {}
    is_said = any(each.type == "Obeyed" for each in object_status.conditions)
    if not is_said and before.get("status") == "False" and judgement.may_clear(str(before.get("reason"))):
        return conditions.with_obeyed_again(object_status)
    return object_status


def _refused(key: str, looked: ObservedResources, publication: PublicationState) -> ObjectStatus | None:
    """Return the status of an object that is invalid, contradicts others or would change a served version; None if it
    is neither."""
    if key in looked.refusals:
        refusal = looked.refusals[key]
        return conditions.refused_status(refusal.problems, stands_in=refusal.stands_in)
    if key in publication.refused:
        return conditions.changed_version_status(publication.refused[key])
    return None


def _in_force(rollout: Rollout | None) -> ObjectStatus:
    if rollout is None:
        return conditions.PUBLISHED
    words = rollout_text(rollout)
    return conditions.rolling_out_status(words) if rollout.is_active else conditions.halted_status(words)
