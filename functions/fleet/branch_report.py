"""Report of the controller on what it follows: what is wanted, what runs, what was refused and why.

    PUT /v1/branch      the controller's, when something is new and each half minute: registries keep it in memory
    GET /v1/branch      what it said last, and how long ago

The source is a branch (`main@<commit>`) or the cluster's own objects. Words are files, lines and commits' messages of
people who push, so they are bounded here and are text wherever they are shown.
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
    """What came of one revision."""

    revision: Words
    result: Words  # applied | refused | superseded | failed
    message: Words = ""  # the commit's
    detail: Words = ""  # why
    at_unix_s: UnixSeconds = 0.0
    count: int = 1  # how often, one after the other


class UnreadyObject(msgspec.Struct, frozen=True):
    """A pool, tenant, policy or model that is not as declared."""

    kind: Words
    name: Words
    reason: Words = ""
    message: Words = ""
    state: Words = ""


class BranchReport(msgspec.Struct, frozen=True):
    """Unknown fields are ignored: a newer controller may say more."""

    source: Words  # a branch, or `kubernetes`
    tip: Words = ""  # the newest revision there
    tip_message: Words = ""
    desired: Words = ""
    desired_message: Words = ""
    applied: Words = ""
    applied_unix_s: UnixSeconds = 0.0
    suspended: Words | None = None  # why; None: it is not
    trouble: Words = ""  # why the branch cannot be read
    problems: Annotated[tuple[Words, ...], msgspec.Meta(max_length=PROBLEMS_MAX)] = ()  # of the tip
    problem_count: Annotated[int, msgspec.Meta(ge=0)] = 0
    history: Annotated[tuple[PastRevision, ...], msgspec.Meta(max_length=HISTORY_MAX)] = ()  # the newest first
    objects: Annotated[tuple[UnreadyObject, ...], msgspec.Meta(max_length=OBJECTS_MAX)] = ()
    object_count: Annotated[int, msgspec.Meta(ge=0)] = 0  # of those that are not ready


def words(text: Any) -> str:
    """At most as long as a report may have them."""
    return str(text or "")[:_WORDS_MAX_CHARS]
