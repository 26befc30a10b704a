"""Errors of the API server, named by how the caller reacts.

    Retryable      repeat later (429, 5xx, no connection); `after_s` if the server sent Retry-After
    Stale          read again and repeat: another writer changed or created the object in between
    Conflict       another field manager declares the fields: report it, or take them by force
    Terminal       change the input: the object is invalid, or the controller lacks a permission
    KindMissing    wait for the CRD: the API server does not serve this kind
    Gone           list again: the resourceVersion of a watch or a page is too old
    LeadershipLost stop writing: another controller leads

Worked example: the server answers 409 for two errors. With causes of reason FieldManagerConflict it is Conflict,
without them Stale (test_409_is_classified_by_its_causes). An apply that does not match the schema is Terminal,
although newer servers (seen on 1.34) answer 500.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RETRY_AFTER_MAX_S = 300.0
_MESSAGE_MAX_CHARS = 500
_CAUSES_MAX = 20
_AGAINST_THE_SCHEMA = "failed to create typed patch object"
_QUOTED = re.compile(r'conflict with "([^"]{0,253})"')
_FORBIDDEN = re.compile(r'cannot (?P<verb>[a-z]+) resource "(?P<resource>[^"]*)" in API group "(?P<group>[^"]*)"')
# Applying a missing object also needs the verb create; without it the server's message ends without a reason.
_FORBIDDEN_TO_MAKE = re.compile(r'^(?P<resource>[a-z]+)(?:\.(?P<group>[a-z0-9.-]+))? "[^"]*" is forbidden: ?$')


class KubeError(Exception):
    """Base of all errors. The text has the request and the server's message."""


class Retryable(KubeError):
    """A failure that may pass without a change."""

    def __init__(self, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


class Stale(Retryable):
    """The object changed after it was read; read it again."""


@dataclass(frozen=True, slots=True, order=True)
class FieldConflict:
    manager: str
    field: str  # as the server writes it: `.spec.predictor.minReplicas`

    def __str__(self) -> str:
        return f"{self.manager} holds {self.field}"


class Conflict(KubeError):
    """Other field managers hold fields that the apply wants to set to something else."""

    def __init__(self, message: str, conflicts: tuple[FieldConflict, ...]) -> None:
        super().__init__(message)
        self.conflicts = conflicts


class Terminal(KubeError):
    """A failure that repeats until the input or the controller's permissions change."""


class KindMissing(KubeError):
    """The API server does not serve the kind (yet)."""


class Gone(KubeError):
    """The resourceVersion is too old; list again."""


class LeadershipLost(KubeError):
    """Another controller leads, or may; nothing was sent."""


def from_status(status: int, body: bytes | str, headers: Mapping[str, str], asked: str) -> KubeError:
    """Return the error for an HTTP status outside 2xx. `asked` describes the request, such as `apply Service a/b`."""
    answer = _parsed(body)
    said = str(answer.get("message") or "")[:_MESSAGE_MAX_CHARS] or f"status {status}"
    message = f"{asked}: {said}"
    if status == 409:
        conflicts = _conflicts(answer)
        return Conflict(message, conflicts) if conflicts else Stale(message)
    if status == 410:
        return Gone(message)
    if status == 403 and answer.get("reason") == "Forbidden":
        return Terminal(f"{message}{_missing_right(said)}")
    if status == 500 and said.startswith(_AGAINST_THE_SCHEMA):
        return Terminal(message)
    if status == 429 or status >= 500 or status in (401, 408):  # 401: tokens of pods are renewed while they run
        return Retryable(message, retry_after_s(headers))
    return Terminal(message)


def is_unknown_kind(body: bytes | str) -> bool:
    """Return True if a 404 means that the path is not served at all, not that the object does not exist."""
    return not _parsed(body)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the server's Retry-After, bounded, or None if it sent none or no number."""
    text = next((value for name, value in headers.items() if name.lower() == "retry-after"), "")
    return min(float(text), RETRY_AFTER_MAX_S) if text.isascii() and text.isdigit() else None


def _conflicts(answer: Mapping[str, Any]) -> tuple[FieldConflict, ...]:
    found = []
    for cause in _details(answer).get("causes") or []:
        if isinstance(cause, dict) and cause.get("reason") == "FieldManagerConflict":
            manager = _QUOTED.search(str(cause.get("message", "")))
            found.append(FieldConflict(manager[1] if manager else "unknown", str(cause.get("field", ""))))
    return tuple(sorted(found)[:_CAUSES_MAX])


def _missing_right(said: str) -> str:
    right = _FORBIDDEN.search(said)
    if right is not None:
        return f"; grant the verb {right['verb']} on {right['resource']} of API group {right['group'] or 'core'}"
    made = _FORBIDDEN_TO_MAKE.search(said)
    if made is not None:
        return f"; grant the verb create on {made['resource']} of API group {made['group'] or 'core'}"
    return ""


def _details(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    details = answer.get("details")
    return details if isinstance(details, dict) else {}


def _parsed(body: bytes | str) -> Mapping[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, TypeError):
        return {}
    return answer if isinstance(answer, dict) else {}
