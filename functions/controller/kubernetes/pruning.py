"""Pruning of objects that are in the inventory, no longer desired, and provably ours. Pure.

An object may be deleted if our field manager applies it and it has the uid in the inventory. It stays if git or its
own annotation opts out. Deleting everything, or more than half of the services in one pass, is what a broken checkout
or a wrong branch looks like. That needs a person's consent for this very revision (the record's annotation).

Worked example (test_half_of_the_services_may_be_pruned_without_consent): of 4 services, 2 may be deleted; 3 wait for
consent; so does 1 of 1, since nothing would be left. Services added by the same change are not counted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from functions.controller.kubernetes.inventory import InventoryEntry, InventoryRecord
from functions.controller.kubernetes.objects import (
    CONSENT_ANNOTATION,
    FIELD_MANAGER,
    INFERENCE_SERVICE,
    PRUNE_ANNOTATION,
    PRUNE_DISABLED,
    Body,
    ObjectRef,
    is_being_deleted,
    list_at,
    mapping_at,
    uid_of,
)
from functions.controller.kubernetes.ownership import declares
from functions.controller.kubernetes.render import Desired


@dataclass(frozen=True, slots=True)
class Note:
    """Fact about an object that a person may want to check."""

    ref: ObjectRef
    message: str

    def __str__(self) -> str:
        return f"{self.ref}: {self.message}"


@dataclass(frozen=True, slots=True)
class PrunePlan:
    delete: tuple[tuple[ObjectRef, Body], ...] = ()  # reverse order of application
    forget: tuple[ObjectRef, ...] = ()  # gone or not ours: removed from the inventory
    notes: tuple[Note, ...] = ()
    refused: str = ""  # why nothing is deleted although something is due


def plan_prune(record: InventoryRecord, desired: Desired, live: Mapping[ObjectRef, Body]) -> PrunePlan:
    wanted = {each.ref for each in desired.objects}
    scope = {(kind.group, kind.kind) for kind in desired.kinds}
    delete: list[tuple[InventoryEntry, Body]] = []
    forget: list[ObjectRef] = []
    notes: list[Note] = []
    for entry in record.entries:
        if entry.ref in wanted:
            continue
        found = live.get(entry.ref)
        if (entry.group, entry.kind) not in scope:
            forget.append(entry.ref)
            notes.append(Note(entry.ref, "is not managed from this source; it stays as it is"))
        elif found is None:
            forget.append(entry.ref)
        elif reason := _reason_not_owned(entry, found):
            forget.append(entry.ref)
            notes.append(Note(entry.ref, f"is not deleted: {reason}"))
        elif reason := _reason_kept(entry, found):
            notes.append(Note(entry.ref, reason))
        else:
            delete.append((entry, found))
    delete.sort(key=lambda pair: (pair[0].wave, pair[0].ref), reverse=True)
    refused = _large_prune_refusal(record, desired, [entry for entry, _ in delete])
    return PrunePlan(
        () if refused else tuple((entry.ref, found) for entry, found in delete), tuple(forget), tuple(notes), refused
    )


def _reason_not_owned(entry: InventoryEntry, found: Body) -> str:
    if entry.uid and uid_of(found) != entry.uid:
        return "another object of this name was created"
    if not declares(found, FIELD_MANAGER):
        return f"the field manager {FIELD_MANAGER} applies nothing of it"
    return ""


def _reason_kept(entry: InventoryEntry, found: Body) -> str:
    if is_being_deleted(found):
        finalizers = ", ".join(map(str, list_at(found, "metadata", "finalizers"))) or "none"
        since = found["metadata"]["deletionTimestamp"]
        return f"is being deleted since {since}; it waits for the removal of its finalizers: {finalizers}"
    if entry.keep or mapping_at(found, "metadata", "annotations").get(PRUNE_ANNOTATION) == PRUNE_DISABLED:
        return f"is not in git any more and stays: {PRUNE_ANNOTATION} is {PRUNE_DISABLED}"
    return ""


def _large_prune_refusal(record: InventoryRecord, desired: Desired, doomed: list[InventoryEntry]) -> str:
    if not any(entry.kind == INFERENCE_SERVICE.kind for entry in doomed) or record.consent == desired.revision:
        return ""  # budgets without their services protect nothing
    consent = f"to allow it, annotate the ConfigMap with {CONSENT_ANNOTATION}={desired.revision}"
    if not desired.objects:
        return f"nothing is desired any more, and {len(doomed)} objects would be deleted; {consent}"
    dying, services = _established(doomed), _established(record.entries)
    if 2 * dying > services:
        return f"{dying} of {services} services would be deleted, more than half; {consent}"
    return ""


def _established(entries: Iterable[InventoryEntry]) -> int:
    return sum(entry.kind == INFERENCE_SERVICE.kind and not entry.new for entry in entries)
