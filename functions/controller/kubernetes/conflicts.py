"""Conflicts with another field manager: drift to repair, or intent to report.

A manager that *updates* fields (kubectl edit, a script) set them once and says nothing about the future: against git,
that is drift, and repaired by force. A manager that *applies* them (Flux, Argo CD, a person's server-side apply)
declares them for as long as it does, as we do; two declarations that differ need a person, so it is reported and
nothing is written. A manager whose updates come back again and again is a controller, not a person: after
`REPAIRS_MAX` repairs of one object within `REPAIR_WINDOW_S` it is reported too, since two writers that overwrite each
other restart the pods each time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from functions.controller.kubernetes.desired import DesiredObject
from functions.controller.kubernetes.errors import Conflict, FieldConflict
from functions.controller.kubernetes.objects import FIELD_MANAGER, ObjectRef
from functions.controller.kubernetes.ownership import declares, is_ours_to_take

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
