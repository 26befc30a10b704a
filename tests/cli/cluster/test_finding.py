"""Conditions of Kubernetes objects, including objects without any condition yet."""

from typing import Any

import pytest

from functions.cli.cluster.finding import condition, first_reason

READY: dict[str, Any] = {"type": "Ready", "status": "False", "reason": "Waits", "message": "for a node"}


@pytest.mark.parametrize("status", [None, {}, {"conditions": None}, {"conditions": []}])
def test_an_object_without_conditions_is_no_error(status: Any) -> None:
    """A null field counts as missing: diagnosing a new cluster must not end with a traceback."""
    assert condition({"status": status}, "Ready") is None and first_reason({"status": status}) == ""


def test_requested_condition_is_returned_among_several() -> None:
    body = {"status": {"conditions": [{"type": "Scheduled", "status": "False", "reason": "Full"}, READY]}}
    assert (condition(body, "Ready"), condition(body, "Scheduled"), condition(body, "Other")) == (
        "False",
        "False",
        None,
    )
    assert first_reason(body) == "Waits: for a node"
