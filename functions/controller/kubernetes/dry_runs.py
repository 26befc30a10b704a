"""Dry-run every desired object before any of them is written.

A dry run shows whether an object must be written, whether force is needed, or why the object is refused. All objects
are tried, so that users see every refusal together. A `Retryable` error is no refusal: it ends the whole reconcile.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.errors import Conflict, KindMissing, Terminal
from functions.controller.kubernetes.objects import FIELD_MANAGER, INFERENCE_SERVICE, Body, ObjectRef, is_being_deleted
from functions.controller.kubernetes.outcome import ObjectRefusal
from functions.controller.kubernetes.ownership import (
    Policy,
    Repairs,
    body_for,
    contested_fields,
    fields_applied_by,
    seed_body,
)
from functions.controller.kubernetes.render import DesiredObject
from functions.controller.kubernetes.webhook_rules import mode_change

# Comparison of a dry run's result with the live object: is there anything to write?
#
# Comparing our body with the live object would report every default that the server adds as drift. The dry run's
# result has those defaults. Both are equal if they have the same content, except for what every write changes, and
# the same fields under our manager. The latter releases fields that we no longer declare, whatever their value.


_MOVES_BY_ITSELF = frozenset({"managedFields", "resourceVersion", "generation", "creationTimestamp", "selfLink"})
_LISTED = 5


def is_converged(live: Mapping[str, Any], result: Mapping[str, Any]) -> bool:
    """Return True if applying would change nothing: `result`, the answer to a dry run, has the same content and the
    same fields applied by us as `live`."""
    same_fields = fields_applied_by(live, FIELD_MANAGER) == fields_applied_by(result, FIELD_MANAGER)
    return same_fields and _content(live) == _content(result)


def dropped_fields(body: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    """Return up to 5 key paths that were sent but are missing in the result: fields that the server does not know.

    A server before 1.25 has no strict field validation and drops unknown fields silently. Empty values may be
    missing: KServe's webhook rewrites objects without empty texts, zeros and lists.
    """
    return [path for path, _ in zip(_missing(body, result, ""), range(_LISTED), strict=False)]


def _content(value: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {key: item for key, item in value["metadata"].items() if key not in _MOVES_BY_ITSELF}
    return {**{key: item for key, item in value.items() if key != "status"}, "metadata": metadata}


def _missing(sent: Any, got: Any, path: str) -> Iterator[str]:
    if isinstance(sent, dict):
        for key, value in sent.items():
            here = f"{path}.{key}" if path else key
            if not isinstance(got, dict) or key not in got:
                if value:
                    yield here
            else:
                yield from _missing(value, got[key], here)
    elif isinstance(sent, list) and isinstance(got, list) and len(sent) == len(got):
        for index, (value, other) in enumerate(zip(sent, got, strict=True)):
            yield from _missing(value, other, f"{path}[{index}]")


@dataclass(frozen=True, slots=True)
class DryRun:
    wanted: DesiredObject
    live: Body | None
    writes: bool = False  # applying would change something
    force: bool = False  # take fields from a manager that only updated them

    @property
    def ref(self) -> ObjectRef:
        return self.wanted.ref


@dataclass(frozen=True, slots=True)
class DryRuns:
    """Dry runs of one applier. They outlive a reconcile, because `repairs` remembers what was taken by force."""

    api: KubeApi
    policy: Policy
    repairs: Repairs
    monotonic_s: Callable[[], float]

    def try_object(self, wanted: DesiredObject, live: Body | None) -> DryRun | ObjectRefusal:
        """Dry-run one object, and return the result or the refusal; one that is being deleted is not sent. Raises
        Retryable and LeadershipLost."""
        if live is not None and is_being_deleted(live):
            return DryRun(wanted, live)  # nothing to write until it is gone; its health reports that
        try:
            return self._dry_run(wanted, live)
        except (Conflict, Terminal, KindMissing) as error:
            return ObjectRefusal(wanted.ref, wanted.source, error)

    def _dry_run(self, wanted: DesiredObject, live: Body | None) -> DryRun:
        if (
            live is not None
            and wanted.ref.kind == INFERENCE_SERVICE.kind
            and (reason := mode_change(wanted.body, live))
        ):
            raise Terminal(reason)
        body, force = body_for(wanted, live), False
        try:
            result = self.api.server_side_apply(body, dry_run=True)
        except Conflict as conflict:
            self._raise_if_contested(conflict, wanted, live)
            force = True
            result = self.api.server_side_apply(body, dry_run=True, force=True)
        if unknown := dropped_fields(body, result):
            raise Terminal(f"the API server does not know {', '.join(unknown)}, and would drop it")
        writes = live is None or not is_converged(live, result) or seed_body(wanted, live) is not None
        return DryRun(wanted, live, writes, force)

    def _raise_if_contested(self, conflict: Conflict, wanted: DesiredObject, live: Body | None) -> None:
        often = self.repairs.is_limit_reached(wanted.ref, self.monotonic_s())
        fields = contested_fields(conflict, wanted, live, self.policy, repaired_often=often)
        if fields:
            whose = "; ".join(str(each) for each in fields)
            again = " (overwritten after each repair, probably by a controller)" if often else ""
            raise Conflict(f"other field managers declare other values: {whose}{again}", fields)

    def note_applied(self, dry_run: DryRun) -> None:
        if dry_run.force:
            self.repairs.record_repair(dry_run.ref, self.monotonic_s())


def try_all(
    dry_runs: DryRuns, objects: tuple[DesiredObject, ...], live: Mapping[ObjectRef, Body]
) -> tuple[list[DryRun], list[ObjectRefusal]]:
    """Dry-run all objects; return the dry runs, and the refusals of the other objects."""
    tried: list[DryRun] = []
    refused: list[ObjectRefusal] = []
    for wanted in objects:
        match dry_runs.try_object(wanted, live.get(wanted.ref)):
            case ObjectRefusal() as refusal:
                refused.append(refusal)
            case DryRun() as dry_run:
                tried.append(dry_run)
    dry_runs.repairs.keep_only({wanted.ref for wanted in objects})
    return tried, refused
