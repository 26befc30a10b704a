"""The API server's refusals in their original wording, and the errors they become."""

import json
from typing import Any

import pytest

from functions.controller.kubernetes.errors import (
    RETRY_AFTER_MAX_S,
    Conflict,
    FieldConflict,
    Gone,
    KubeError,
    Retryable,
    Stale,
    Terminal,
    from_status,
    is_unknown_kind,
)


def answer(message: str, reason: str = "", causes: list[dict[str, str]] | None = None) -> str:
    body: dict[str, Any] = {"kind": "Status", "message": message, "reason": reason}
    if causes is not None:
        body["details"] = {"causes": causes}
    return json.dumps(body)


MODIFIED = answer('Operation cannot be fulfilled on inferenceservices "a": the object has been modified', "Conflict")
HELD = answer(
    "Apply failed with 1 conflict",
    "Conflict",
    [
        {
            "reason": "FieldManagerConflict",
            "message": 'conflict with "kubectl-edit" using serving.kserve.io/v1beta1',
            "field": ".spec.predictor.minReplicas",
        }
    ],
)
MISTYPED = answer(  # Kubernetes 1.34
    "failed to create typed patch object (m/a; serving.kserve.io/v1beta1, Kind=InferenceService): "
    ".spec.predictor.timeout: expected numeric (int or float), got string"
)
FORBIDDEN = answer(
    'poddisruptionbudgets.policy "a" is forbidden: User "x" cannot patch resource "poddisruptionbudgets" '
    'in API group "policy" in the namespace "m"',
    "Forbidden",
)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (400, answer("bad"), Terminal),
        (401, answer("Unauthorized"), Retryable),
        (403, FORBIDDEN, Terminal),
        (404, answer('namespaces "x" not found', "NotFound"), Terminal),
        (409, MODIFIED, Stale),
        (409, HELD, Conflict),
        (409, answer("exists", "AlreadyExists"), Stale),
        (410, answer("too old resource version", "Expired"), Gone),
        (422, answer("must be of type integer", "Invalid"), Terminal),
        (429, answer("slow down"), Retryable),
        (500, answer("etcd"), Retryable),
        (500, MISTYPED, Terminal),
        (503, "not even JSON", Retryable),
        (504, "", Retryable),
    ],
)
def test_each_http_status_maps_to_an_error_class(status: int, body: str, error: type[KubeError]) -> None:
    assert type(from_status(status, body, {}, "apply X a/b")) is error


def test_409_is_classified_by_its_causes() -> None:
    conflict = from_status(409, HELD, {}, "apply")
    assert isinstance(conflict, Conflict)
    assert conflict.conflicts == (FieldConflict("kubectl-edit", ".spec.predictor.minReplicas"),)
    assert isinstance(from_status(409, MODIFIED, {}, "apply"), Stale)


def test_a_missing_right_says_what_to_grant() -> None:
    assert "grant the verb patch on poddisruptionbudgets of API group policy" in str(
        from_status(403, FORBIDDEN, {}, "")
    )


def test_apply_without_create_right_names_the_verb_to_grant() -> None:
    silent = answer('poddisruptionbudgets.policy "a" is forbidden: ', "Forbidden")
    assert "grant the verb create on poddisruptionbudgets of API group policy" in str(from_status(403, silent, {}, ""))


def test_error_names_the_request_and_the_answer() -> None:
    assert str(from_status(422, answer("no"), {}, "apply Service a/b")) == "apply Service a/b: no"


@pytest.mark.parametrize(
    ("text", "after_s"), [("7", 7.0), ("99999999", RETRY_AFTER_MAX_S), ("-1", None), ("soon", None), ("", None)]
)
def test_retry_after_is_bounded(text: str, after_s: float | None) -> None:
    error = from_status(429, "{}", {"Retry-After": text}, "")
    assert isinstance(error, Retryable)
    assert error.after_s == after_s


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", "null", '{"details": []}', '{"details": {"causes": [1, null]}}'])
def test_any_error_body_maps_to_an_error_class(body: bytes | str) -> None:
    assert isinstance(from_status(409, body, {}, "x"), Stale)


def test_unserved_path_differs_from_a_missing_object() -> None:
    assert is_unknown_kind("404 page not found\n")
    assert not is_unknown_kind(answer('configmaps "a" not found', "NotFound"))


def test_long_messages_are_cut() -> None:
    assert len(str(from_status(422, answer("x" * 100_000), {}, ""))) < 1000
