"""Report of the controller on the source that it follows: what is wanted, what runs, what was refused and why.

    PUT /v1/branch      by the controller, on every change and every half minute: registries hold it in memory
    GET /v1/branch      the last report and its age

The source is a branch (`main@<commit>`) or the cluster's own objects. Texts contain file contents and commit messages
of people who push, so they are bounded here, and every page shows them as plain text.
"""

from typing import Annotated, Any

import msgspec

BRANCH_PATH = "/v1/branch"
BRANCH_MAX_BYTES = 512 * 1024
TELL_EVERY_S = 30.0
PROBLEMS_MAX, HISTORY_MAX, OBJECTS_MAX = 50, 20, 200
_WORDS_MAX_CHARS = 1000

Words = Annotated[str, msgspec.Meta(max_length=_WORDS_MAX_CHARS)]
UnixSeconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e11)]


class PastRevision(msgspec.Struct, frozen=True):
    """Result of one revision."""

    revision: Words
    result: Words  # applied | refused | superseded | failed
    message: Words = ""  # commit message
    detail: Words = ""  # reason for the result
    at_unix_s: UnixSeconds = 0.0
    count: int = 1  # number of consecutive occurrences


class UnreadyObject(msgspec.Struct, frozen=True):
    """A pool, tenant, policy or model that is not as declared."""

    kind: Words
    name: Words
    reason: Words = ""
    message: Words = ""
    state: Words = ""


class BranchReport(msgspec.Struct, frozen=True):
    """The report as it is sent. Unknown fields are ignored: a newer controller may add some."""

    source: Words  # a branch, or `kubernetes`
    tip: Words = ""  # the newest revision of the source
    tip_message: Words = ""
    desired: Words = ""
    desired_message: Words = ""
    applied: Words = ""
    applied_unix_s: UnixSeconds = 0.0
    suspended: Words | None = None  # reason for the suspension; None if following is not suspended
    trouble: Words = ""  # reason why the branch cannot be read
    problems: Annotated[tuple[Words, ...], msgspec.Meta(max_length=PROBLEMS_MAX)] = ()  # problems of the tip
    problem_count: Annotated[int, msgspec.Meta(ge=0)] = 0
    history: Annotated[tuple[PastRevision, ...], msgspec.Meta(max_length=HISTORY_MAX)] = ()  # newest first
    objects: Annotated[tuple[UnreadyObject, ...], msgspec.Meta(max_length=OBJECTS_MAX)] = ()
    object_count: Annotated[int, msgspec.Meta(ge=0)] = 0  # number of objects that are not ready


def bounded_text(text: Any) -> str:
    """Return the text, cut to the length that a report allows; empty for None."""
    return str(text or "")[:_WORDS_MAX_CHARS]
