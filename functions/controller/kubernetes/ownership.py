"""Field ownership by `metadata.managedFields`: handover of a field, and conflicts with other managers.

An owner is a manager's name and its operation: `Apply` declares fields for as long as it applies, `Update` set them
once. Entries of subresources (a controller writing status) own no field that matters here.

Conflicts: an update (kubectl edit, a script) that differs from git is drift and is repaired by force. A manager that
applies (Flux, Argo CD, a person's server-side apply) declares its fields as we do. Two declarations that differ need
a person, so the conflict is reported and nothing is written. A manager whose updates come back again and again is a
controller. After `REPAIRS_MAX` repairs of one object within `REPAIR_WINDOW_S` it is reported too, since two writers
that overwrite each other restart the pods each time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from functions.controller.kubernetes.errors import Conflict, FieldConflict
from functions.controller.kubernetes.objects import (
    AUTOSCALER_MANAGER,
    FIELD_MANAGER,
    Body,
    ObjectRef,
    list_at,
    uid_of,
    value_at,
    version_of,
)
from functions.controller.kubernetes.render import DesiredObject

Owner = tuple[str, str]  # manager, operation


def owners(live: Mapping[str, Any], *path: str) -> set[Owner]:
    """Return the owners, each a manager and its operation, of the field at the path of keys."""
    return {(manager, operation) for manager, operation, fields in _entries(live) if _has(fields, path)}


def fields_applied_by(live: Mapping[str, Any], manager: str) -> Mapping[str, Any] | None:
    """Return the set of fields that the manager applies, in the server's own notation, or None."""
    return next((fields for name, operation, fields in _entries(live) if (name, operation) == (manager, "Apply")), None)


def declares(live: Mapping[str, Any], manager: str) -> bool:
    """Return True if the manager applies (not just once updated) any field of the object."""
    return fields_applied_by(live, manager) is not None


def _entries(live: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for entry in list_at(live, "metadata", "managedFields"):
        if isinstance(entry, dict) and not entry.get("subresource"):
            fields = entry.get("fieldsV1")
            yield (
                str(entry.get("manager", "")),
                str(entry.get("operation", "")),
                fields if isinstance(fields, dict) else {},
            )


def _has(fields: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    node: Any = fields
    for part in path:
        node = node.get(f"f:{part}") if isinstance(node, dict) else None
        if node is None:
            return False
    return True


# Handover of `minReplicas` between its two possible owners, without shrinking the pool.
#
# With server-side apply, a field that its only owner stops declaring is removed, and KServe takes a missing
# `minReplicas` as 1: a pool of eight would lose seven replicas until the number is set again. So the new owner
# applies the field before the old one releases it, and no step changes the number:
#
#     created under a policy    we apply with the seed     then as below
#     a policy is added         the autoscaler applies the live number (both own it); we apply without it
#     a policy is removed       we apply with our number, by force; a single step
#
# The next reconcile recognises every intermediate state by the owners alone, so a controller may die at any of them
# (test_handover_survives_a_kill_at_every_write). A pool whose YAML never had the field keeps the autoscaler's last
# number.


FIELD = ("spec", "predictor", "minReplicas")
FIELD_TEXT = ".spec.predictor.minReplicas"  # the server's name for it in a conflict


def body_for(wanted: DesiredObject, live: Mapping[str, Any] | None) -> Body:
    """Return the body to apply, bound to the live object's uid and resourceVersion. A new object of an autoscaled pool
    gets the seed as minReplicas instead."""
    if live is not None:
        lock = {"uid": uid_of(live), "resourceVersion": version_of(live)}
        return {**wanted.body, "metadata": {**wanted.body["metadata"], **lock}}
    if wanted.autoscaled is None:
        return wanted.body
    predictor = {**wanted.body["spec"]["predictor"], "minReplicas": wanted.autoscaled.seed}
    return {**wanted.body, "spec": {**wanted.body["spec"], "predictor": predictor}}


def seed_body(wanted: DesiredObject, live: Mapping[str, Any]) -> Body | None:
    """Return what the autoscaler must apply before we may release the field. None if the pool is not autoscaled or
    another manager owns the field already."""
    others = {manager for manager, _ in owners(live, *FIELD)} - {FIELD_MANAGER}
    if wanted.autoscaled is None or others:
        return None
    number = value_at(live, *FIELD)
    return {
        "apiVersion": wanted.body["apiVersion"],
        "kind": wanted.body["kind"],
        "metadata": {
            "name": wanted.ref.name,
            "namespace": wanted.ref.namespace,
            "uid": uid_of(live),
            "resourceVersion": version_of(live),
        },
        "spec": {"predictor": {"minReplicas": number if number is not None else wanted.autoscaled.seed}},
    }


def declared_by_autoscaler_alone(live: Mapping[str, Any]) -> bool:
    """Return True if our autoscaler is the only manager that declares the live number."""
    declaring = {manager for manager, operation in owners(live, *FIELD) if operation == "Apply"}
    return declaring == {AUTOSCALER_MANAGER}


def may_force_field(wanted: DesiredObject, conflict: FieldConflict) -> bool:
    """Return True if the autoscaler still owns the field of a pool that is no longer autoscaled."""
    return wanted.autoscaled is None and conflict == FieldConflict(AUTOSCALER_MANAGER, FIELD_TEXT)


Policy = Literal["report", "force"]
REPAIRS_MAX = 3
REPAIR_WINDOW_S = 600.0


@dataclass(slots=True)
class Repairs:
    """Times of each object's last repairs by force, at most `REPAIRS_MAX` each."""

    _at_s: dict[ObjectRef, list[float]] = field(default_factory=dict)

    def record_repair(self, ref: ObjectRef, now_s: float) -> None:
        self._at_s[ref] = [*self._recent(ref, now_s), now_s][-REPAIRS_MAX:]

    def is_limit_reached(self, ref: ObjectRef, now_s: float) -> bool:
        return len(self._recent(ref, now_s)) >= REPAIRS_MAX

    def keep_only(self, refs: "set[ObjectRef]") -> None:
        self._at_s = {ref: times for ref, times in self._at_s.items() if ref in refs}

    def _recent(self, ref: ObjectRef, now_s: float) -> list[float]:
        return [at_s for at_s in self._at_s.get(ref, []) if now_s - at_s < REPAIR_WINDOW_S]


def contested_fields(
    conflict: Conflict, wanted: DesiredObject, live: Mapping[str, Any] | None, policy: Policy, *, repaired_often: bool
) -> tuple[FieldConflict, ...]:
    """Return the fields that may not be taken by force: those of managers that apply the object, or of any other
    manager if repaired often. If there are none, force is right."""
    if policy == "force" or live is None:
        return ()
    return tuple(
        each
        for each in conflict.conflicts
        if each.manager != FIELD_MANAGER  # a webhook's change to our apply counts as our own update
        and not may_force_field(wanted, each)
        and (declares(live, each.manager) or repaired_often)
    )
