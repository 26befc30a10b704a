"""Field ownership of a live object by `metadata.managedFields`: handover of a field, and conflicts with other managers.

An owner is a manager's name and its operation: `Apply` declares fields for as long as it applies, `Update` set them
once. Entries of subresources (a controller writing status) own nothing that we would want.

Conflicts: against git, an update (kubectl edit, a script) is drift, and repaired by force. A manager that applies
(Flux, Argo CD, a person's server-side apply) declares its fields as we do; two declarations that differ need a person,
so it is reported and nothing is written. A manager whose updates come back again and again is a controller, not a
person: after `REPAIRS_MAX` repairs of one object within `REPAIR_WINDOW_S` it is reported too, since two writers that
overwrite each other restart the pods each time.
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
    at,
    list_at,
    uid_of,
    version_of,
)
from functions.controller.kubernetes.render import DesiredObject

Owner = tuple[str, str]  # manager, operation


def owners(live: Mapping[str, Any], *path: str) -> set[Owner]:
    """Who owns the field at the path of keys."""
    return {(manager, operation) for manager, operation, fields in _entries(live) if _has(fields, path)}


def fields_applied_by(live: Mapping[str, Any], manager: str) -> Mapping[str, Any] | None:
    """The set of fields that the manager applies, in the server's own notation; None where it applies nothing."""
    return next((fields for name, operation, fields in _entries(live) if (name, operation) == (manager, "Apply")), None)


def declares(live: Mapping[str, Any], manager: str) -> bool:
    """Whether the manager applies (rather than once updated) anything of the object."""
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


# Handover of `minReplicas`, a field with two possible owners, without the pool ever shrinking.
#
# With server-side apply, a field that its only owner stops declaring is removed, and KServe takes a missing
# `minReplicas` as 1: a pool of eight would lose seven replicas for as long as it takes to say eight again. So the new
# owner takes the field before the old one lets go, and each step leaves the number as it was:
#
#     created under a policy    we apply with the seed     then as below
#     a policy is added         the autoscaler applies the live number (both own it); we apply without it
#     a policy is removed       we apply with our number, taking the field by force; a single step
#
# Every point in between is a state that the next reconcile recognises by the owners alone, so a controller may die at
# any of them (test_dies_at_every_write_of_a_handover). A pool whose YAML never had the field keeps what the autoscaler
# said last.


FIELD = ("spec", "predictor", "minReplicas")
FIELD_TEXT = ".spec.predictor.minReplicas"  # as the server names it in a conflict


def body_for(wanted: DesiredObject, live: Mapping[str, Any] | None) -> Body:
    """What to apply: the body, bound to the live object as it was read; with the seed where there is none yet."""
    if live is not None:
        lock = {"uid": uid_of(live), "resourceVersion": version_of(live)}
        return {**wanted.body, "metadata": {**wanted.body["metadata"], **lock}}
    if wanted.autoscaled is None:
        return wanted.body
    predictor = {**wanted.body["spec"]["predictor"], "minReplicas": wanted.autoscaled.seed}
    return {**wanted.body, "spec": {**wanted.body["spec"], "predictor": predictor}}


def seed_body(wanted: DesiredObject, live: Mapping[str, Any]) -> Body | None:
    """What the autoscaler must apply before we may let go of the field; None where somebody else holds it already."""
    others = {manager for manager, _ in owners(live, *FIELD)} - {FIELD_MANAGER}
    if wanted.autoscaled is None or others:
        return None
    number = at(live, *FIELD)
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
    """Whether the live number is what our autoscaler wrote, and nobody else's declaration."""
    declaring = {manager for manager, operation in owners(live, *FIELD) if operation == "Apply"}
    return declaring == {AUTOSCALER_MANAGER}


def is_ours_to_take(wanted: DesiredObject, conflict: FieldConflict) -> bool:
    """The field of a pool that is no longer autoscaled, still held by the autoscaler."""
    return wanted.autoscaled is None and conflict == FieldConflict(AUTOSCALER_MANAGER, FIELD_TEXT)


Policy = Literal["report", "force"]
REPAIRS_MAX = 3
REPAIR_WINDOW_S = 600.0


@dataclass(slots=True)
class Repairs:
    """When each object was last repaired by force; bounded by the objects that exist and `REPAIRS_MAX` each."""

    _at_s: dict[ObjectRef, list[float]] = field(default_factory=dict)

    def note(self, ref: ObjectRef, now_s: float) -> None:
        self._at_s[ref] = [*self._recent(ref, now_s), now_s][-REPAIRS_MAX:]

    def are_too_many(self, ref: ObjectRef, now_s: float) -> bool:
        return len(self._recent(ref, now_s)) >= REPAIRS_MAX

    def keep_only(self, refs: "set[ObjectRef]") -> None:
        self._at_s = {ref: times for ref, times in self._at_s.items() if ref in refs}

    def _recent(self, ref: ObjectRef, now_s: float) -> list[float]:
        return [at_s for at_s in self._at_s.get(ref, []) if now_s - at_s < REPAIR_WINDOW_S]


def not_ours(
    conflict: Conflict, wanted: DesiredObject, live: Mapping[str, Any] | None, policy: Policy, *, repaired_often: bool
) -> tuple[FieldConflict, ...]:
    """The fields that may not be taken by force; none of them: force is right."""
    if policy == "force" or live is None:
        return ()
    return tuple(
        each
        for each in conflict.conflicts
        if each.manager != FIELD_MANAGER  # what a webhook made of an apply of ours is an update in our name
        and not is_ours_to_take(wanted, each)
        and (declares(live, each.manager) or repaired_often)
    )
