"""Changes of a status, a record or a rollout become Events, each of them once."""

from typing import Any

import pytest

from functions.controller.kubernetes.inventory import ReconcileAttempt
from functions.controller.kubernetes.objects import Kind
from functions.controller.kubernetes.run import conditions
from functions.controller.kubernetes.run.conditions import PUBLISHED, ObjectStatus, ScalingStatus
from functions.controller.kubernetes.run.event_notes import (
    EventNote,
    Regarding,
    notes_of_history,
    notes_of_rollouts,
    notes_of_status,
)
from functions.decisions.rollout.events import Breached, StagePassed, VersionLoaded
from tests.controller.unobeyed.test_declared import EVENTS, found, service
from tests.decisions.rollout.rollouts import rollout

TENANT = Regarding(Kind("shoal.dev/v1alpha1", "Tenant"), "shoal", "acme", "uid-1")
NOW = "2027-01-01T00:00:00Z"


def written(object_status: ObjectStatus, generation: int = 1, known: dict[str, Any] | None = None) -> dict[str, Any]:
    return conditions.status_of(object_status, generation, known or {}, NOW) or dict(known or {})


def said(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each.type, each.reason) for each in notes_of_status(TENANT, before, after)]


REFUSED = conditions.refused_status(["spec.tier: found gold"], stands_in=True)
NOT_OBEYED = conditions.with_findings(PUBLISHED, found(service("a", "--no-enable-prefix-caching"), EVENTS))


@pytest.mark.parametrize(
    ("object_status", "expected"),
    [
        (PUBLISHED, ("Normal", "Accepted")),
        (REFUSED, ("Warning", "Refused")),
        (conditions.waiting_status("ArtifactMissing", "v1 is not there"), ("Warning", "ArtifactMissing")),
        (conditions.deletion_waits_status("deletion waits"), ("Normal", "DeletionWaits")),
        (conditions.rolling_out_status("v1 to v2, stage 1 of 4"), ("Normal", "RolloutStage")),
        (conditions.halted_status("stays v1: error_rate > 2%"), ("Warning", "RolloutTakenBack")),
    ],
    ids=lambda each: each[1] if isinstance(each, tuple) else "",
)
def test_each_condition_is_one_event(object_status: ObjectStatus, expected: tuple[str, str]) -> None:
    status = written(object_status)
    assert said({}, status) == [expected]
    assert said(status, written(object_status, known=status)) == []


def test_transient_condition_is_no_event() -> None:
    assert said({}, written(conditions.waiting_status("RegistryUnavailable", "it is away"))) == []


def test_accepted_change_is_an_event_per_generation() -> None:
    first = written(PUBLISHED, 1)
    (note,) = notes_of_status(TENANT, first, written(PUBLISHED, 2, first))
    assert (note.reason, note.note) == ("Accepted", "generation 2 is in force")


def test_rollout_stages_are_events() -> None:
    one = written(conditions.rolling_out_status("stage 1 of 2"))
    two = written(conditions.rolling_out_status("stage 2 of 2"), known=one)
    assert said(one, two) == [("Normal", "RolloutStage")]
    assert said(two, written(PUBLISHED, known=two)) == [("Normal", "RolloutCompleted")]


def test_obedience_changes_are_events() -> None:
    fine, not_obeyed = written(PUBLISHED), written(NOT_OBEYED)
    (note,) = notes_of_status(TENANT, fine, not_obeyed)
    assert (note.type, note.reason) == ("Warning", "NotObeyed")
    assert note.note.startswith("PrefixCachingOff: spec.prefix.source: found events")
    assert said(not_obeyed, written(conditions.with_obeyed_again(PUBLISHED), known=not_obeyed)) == [
        ("Normal", "ObeyedAgain")
    ]
    assert said(fine, written(conditions.with_obeyed_again(PUBLISHED), known=fine)) == []


def test_replica_changes_are_events() -> None:
    two = written(conditions.with_scaling(PUBLISHED, ScalingStatus(2, 2)))
    three = written(conditions.with_scaling(PUBLISHED, ScalingStatus(3, 2)), known=two)
    (note,) = notes_of_status(TENANT, two, three)
    assert (note.reason, note.note) == ("Scaled", "the number of serving replicas wanted changed from 2 to 3")
    assert said(three, written(conditions.with_scaling(PUBLISHED, ScalingStatus(3, 3)), known=three)) == []


def test_revision_results_are_events() -> None:
    def notes_after(before: list[ReconcileAttempt], after: list[ReconcileAttempt]) -> list[tuple[str, str, str]]:
        return [(each.type, each.reason, each.note) for each in notes_of_history(TENANT, before, after)]

    applied = ReconcileAttempt("main@1", "applied", 1.0)
    waiting = ReconcileAttempt("main@2", "waiting", 2.0, message="a pool is not ready")
    refused = ReconcileAttempt("main@2", "refused", 3.0, message="main@2 has 1 problem(s): a.yaml:3:4")
    assert notes_after([], [applied]) == [("Normal", "RevisionApplied", "main@1 is in force")]
    assert notes_after([applied], [applied]) == []
    assert notes_after([applied], [waiting, applied]) == [("Normal", "RevisionWaits", "main@2: a pool is not ready")]
    assert notes_after([waiting, applied], [refused, applied]) == [("Warning", "RevisionRefused", refused.message)]
    assert notes_after([refused, applied], [refused, applied]) == []


def test_rollouts_without_model_objects_are_events() -> None:
    def rollout_notes(*events: Any, before: tuple[Any, ...] | None = ()) -> list[EventNote]:
        row = rollout(*events)
        known = {row.id: rollout(*before)} if before is not None else {}
        return list(notes_of_rollouts(TENANT, known, {row.id: row}))

    assert [each.reason for each in rollout_notes(before=None)] == ["RolloutStage"]
    assert rollout_notes() == []
    (stage,) = rollout_notes(VersionLoaded(), StagePassed(), before=(VersionLoaded(),))
    assert stage.reason == "RolloutStage" and "stage 2 of" in stage.note
    (back,) = rollout_notes(VersionLoaded(), Breached("error_rate > 2%"), before=(VersionLoaded(),))
    assert (back.type, back.reason) == ("Warning", "RolloutTakenBack")
    assert "error_rate > 2%" in back.note
