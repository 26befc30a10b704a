"""Kubernetes Events about an object, derived from its previous status and the one that is written.

A status is written only when it changes. So an Event is recorded once, and a new leader repeats nothing.

    Accepted            a generation is in force                   Normal
    Refused             the object is invalid as written           Warning
    ArtifactMissing     it waits for a version's artifact          Warning
    DeletionWaits       others still reference it                  Normal
    RolloutStage        a rollout is loading or in a new stage     Normal
    RolloutTakenBack    a rollout was rolled back                  Warning
    RolloutCompleted    a channel is where it is written to be     Normal
    NotObeyed           `functions.controller.unobeyed`            Warning
    ObeyedAgain         the cause of NotObeyed is gone             Normal
    Scaled              another number of replicas is wanted       Normal
    RevisionApplied     git's revision, on the controller's record Normal
    RevisionRefused     the same                                   Warning
    RevisionWaits       the same                                   Normal

Neighbours: `event_recorder` sends them; `scaling_reconciler` adds one for each number that it writes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from functions.api.ids import RolloutId
from functions.controller.kubernetes.inventory import ReconcileAttempt
from functions.controller.kubernetes.objects import Body, Kind, condition, uid_of
from functions.controller.kubernetes.run.object_store import WatchedObject
from functions.controller.unobeyed.findings import Unobeyed
from functions.decisions.rollout.lifecycle import Rollout
from functions.decisions.rollout.messages import rollout_text

NOTE_MAX_CHARS = 1000  # `event_recorder` enforces the API server's 1024 bytes

Type = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class Regarding:
    """The object that an Event is about."""

    kind: Kind
    namespace: str
    name: str
    uid: str

    @classmethod
    def from_stored(cls, kind: Kind, stored: WatchedObject) -> "Regarding":
        return cls(kind, stored.namespace, stored.name, stored.uid)

    @classmethod
    def from_live(cls, kind: Kind, body: Body) -> "Regarding":
        metadata = body["metadata"]
        return cls(kind, metadata.get("namespace", ""), metadata["name"], uid_of(body))


@dataclass(frozen=True, slots=True)
class EventNote:
    regarding: Regarding
    type: Type
    reason: str  # in CamelCase, from a short list
    action: str  # action that the controller did, or failed to do, in CamelCase
    note: str


def notes_of_status(regarding: Regarding, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[EventNote]:
    """Yield Events for what the status `after` says and `before` did not."""
    for type_, told in (("Ready", _ready), ("Obeyed", _obeyed)):
        was = condition({"status": dict(before)}, type_) or {}
        is_ = condition({"status": dict(after)}, type_)
        if is_ is not None:
            yield from told(regarding, was, is_)
    was_wanted, wanted = before.get("wantedReplicas"), after.get("wantedReplicas")
    if was_wanted is not None and wanted is not None and was_wanted != wanted:
        note = f"the number of serving replicas wanted changed from {was_wanted} to {wanted}"
        yield EventNote(regarding, "Normal", "Scaled", "Scale", note)


def _ready(regarding: Regarding, was: Mapping[str, Any], is_: Mapping[str, Any]) -> Iterator[EventNote]:
    reason, message = str(is_.get("reason")), str(is_.get("message"))
    is_said = (was.get("reason"), was.get("message")) == (reason, message)
    generation = is_.get("observedGeneration")
    if reason == "Published":
        if was.get("reason") == "RollingOut" and was.get("observedGeneration") == generation:
            note = "every channel is at its declared version"
            yield EventNote(regarding, "Normal", "RolloutCompleted", "Roll", note)
        elif was.get("status") != "True" or was.get("observedGeneration") != generation:
            yield EventNote(regarding, "Normal", "Accepted", "Publish", f"generation {generation} is in force")
    elif is_said:
        return
    elif reason == "RollingOut":
        yield EventNote(regarding, "Normal", "RolloutStage", "Roll", message)
    elif reason == "RolloutHalted":
        yield EventNote(regarding, "Warning", "RolloutTakenBack", "Roll", message)
    elif reason == "DeletionWaits":
        yield EventNote(regarding, "Normal", "DeletionWaits", "Delete", message)
    elif reason == "ArtifactMissing":
        yield EventNote(regarding, "Warning", "ArtifactMissing", "Publish", message)
    elif is_.get("status") == "False":
        yield EventNote(regarding, "Warning", "Refused", "Publish", f"{reason}: {message}")


def _obeyed(regarding: Regarding, was: Mapping[str, Any], is_: Mapping[str, Any]) -> Iterator[EventNote]:
    if is_.get("status") == "False":
        if (was.get("status"), was.get("reason")) != ("False", is_.get("reason")):
            note = f"{is_.get('reason')}: {is_.get('message')}"
            yield EventNote(regarding, "Warning", "NotObeyed", "Obey", note)
    elif was.get("status") == "False":
        yield EventNote(regarding, "Normal", "ObeyedAgain", "Obey", str(is_.get("message")))


def notes_of_history(
    regarding: Regarding, before: Sequence[ReconcileAttempt], after: Sequence[ReconcileAttempt]
) -> Iterator[EventNote]:
    """Yield an Event if the newest revision's result is new. Both histories are newest first."""
    newest = after[0] if after else None
    if newest is None or (before and (before[0].revision, before[0].result) == (newest.revision, newest.result)):
        return
    if newest.result == "applied":
        yield EventNote(regarding, "Normal", "RevisionApplied", "Apply", f"{newest.revision} is in force")
    elif newest.result == "refused":
        yield EventNote(regarding, "Warning", "RevisionRefused", "Apply", newest.message or newest.revision)
    elif newest.result == "waiting":
        yield EventNote(regarding, "Normal", "RevisionWaits", "Apply", f"{newest.revision}: {newest.message}")


def notes_of_rollouts(
    regarding: Regarding, before: Mapping[RolloutId, Rollout], after: Mapping[RolloutId, Rollout]
) -> Iterator[EventNote]:
    """Yield Events for rollouts that moved since `before`. With git they are about the record."""
    for rollout_id, row in sorted(after.items()):
        was = before.get(rollout_id)
        if was is not None and (was.state, was.stage) == (row.state, row.stage):
            continue
        match row.state:
            case "rolled_back":
                yield EventNote(regarding, "Warning", "RolloutTakenBack", "Roll", rollout_text(row))
            case "completed":
                yield EventNote(regarding, "Normal", "RolloutCompleted", "Roll", rollout_text(row))
            case "loading" | "running" | "paused":
                yield EventNote(regarding, "Normal", "RolloutStage", "Roll", rollout_text(row))


def note_of_finding(regarding: Regarding, finding: Unobeyed) -> EventNote:
    """Return the Event of a finding, for objects whose status shoal does not write."""
    return EventNote(regarding, "Warning", "NotObeyed", "Obey", f"{finding.key}: {finding.reason}: {finding}")
