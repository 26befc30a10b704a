"""Statuses tell a person what to act upon, and are not rewritten without a change."""

from typing import Any

import pytest

from functions.controller.kubernetes.run import conditions
from functions.controller.kubernetes.run.conditions import PUBLISHED, ObjectStatus, is_published, status_of

T0, T1 = "2027-01-01T00:00:00Z", "2027-01-02T00:00:00Z"


def by_type(status: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    assert status is not None
    return {each["type"]: each for each in status["conditions"]}


def test_published_object_is_ready_without_other_conditions() -> None:
    status = status_of(PUBLISHED, 3, {}, T0)
    assert status is not None
    assert status["observedGeneration"] == 3
    (ready,) = status["conditions"]
    assert ready["type"] == "Ready"
    assert ready["status"] == "True"
    assert ready["lastTransitionTime"] == T0
    assert ready["observedGeneration"] == 3


@pytest.mark.parametrize(
    "object_status",
    [
        PUBLISHED,
        conditions.waiting_status("Away", "the registry is away"),
        conditions.refused_status(["bad"], stands_in=True),
    ],
)
def test_equal_status_is_not_written(object_status: ObjectStatus) -> None:
    first = status_of(object_status, 1, {}, T0)
    assert first is not None
    assert status_of(object_status, 1, first, T1) is None


def test_transition_time_changes_with_the_status_only() -> None:
    first = status_of(conditions.refused_status(["bad"], stands_in=False), 1, {}, T0)
    assert first is not None
    again = status_of(conditions.refused_status(["worse"], stands_in=False), 2, first, T1)
    assert by_type(again)["Ready"]["lastTransitionTime"] == T0
    assert "worse" in by_type(again)["Ready"]["message"]
    mended = status_of(PUBLISHED, 3, first, T1)
    assert by_type(mended)["Ready"]["lastTransitionTime"] == T1
    assert "Stalled" not in by_type(mended)


def test_new_generation_is_observed_without_other_changes() -> None:
    first = status_of(PUBLISHED, 1, {}, T0)
    assert first is not None
    second = status_of(PUBLISHED, 2, first, T1)
    assert by_type(second)["Ready"]["observedGeneration"] == 2
    assert by_type(second)["Ready"]["lastTransitionTime"] == T0


def test_conditions_of_other_writers_stay() -> None:
    foreign = {"type": "Audited", "status": "True", "reason": "ByHand", "message": "", "lastTransitionTime": T0}
    status = status_of(PUBLISHED, 1, {"conditions": [foreign]}, T1)
    assert by_type(status)["Audited"] == foreign


def test_refusal_names_the_version_in_force() -> None:
    kept = status_of(conditions.refused_status(["spec.tier: unknown"], stands_in=True), 1, {}, T0)
    left_out = status_of(conditions.refused_status(["spec.tier: unknown"], stands_in=False), 1, {}, T0)
    assert "its last good version stays in force" in by_type(kept)["Stalled"]["message"]
    assert "it is left out" in by_type(left_out)["Stalled"]["message"]
    assert by_type(left_out)["Ready"]["status"] == "False"


def test_a_long_message_is_cut() -> None:
    status = status_of(conditions.waiting_status("Away", "x" * 5000), 1, {}, T0)
    assert len(by_type(status)["Ready"]["message"]) == conditions.MESSAGE_MAX_CHARS


@pytest.mark.parametrize(
    ("object_status", "generation", "published"),
    [
        (PUBLISHED, 1, True),
        (PUBLISHED, 2, False),
        (conditions.waiting_status("Away", ""), 1, False),
        (conditions.refused_status(["bad"], stands_in=True), 1, False),
    ],
)
def test_published_is_decided_by_publication_state(
    object_status: ObjectStatus, generation: int, published: bool
) -> None:
    status = status_of(object_status, 1, {}, T0)
    assert status is not None
    assert is_published(status, generation) is published


@pytest.mark.parametrize("hostile", [{"conditions": None}, {"conditions": ["x", 3]}, {"observedGeneration": "one"}])
def test_status_broken_by_others_is_rewritten(hostile: dict[str, Any]) -> None:
    assert not is_published(hostile, 1)
    assert by_type(status_of(PUBLISHED, 1, hostile, T0))["Ready"]["status"] == "True"
