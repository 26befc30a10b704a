"""Record of the branch's revisions on disk: tried, good, applied; and whether the operator paused them.

A value that evolves; `following` decides when. It survives the controller, so that the next one knows which revision
to fall back on, that it is suspended, and what to tell.
"""

from pathlib import Path
from typing import Literal

import msgspec

from functions.controller.local.files import replace_file

HISTORY_MAX = 5
_RECORD_MAX_BYTES = 1024 * 1024
_DETAIL_MAX_CHARS = 500
_ALLOWED_EMPTY_MAX = 4

Result = Literal["applied", "refused", "superseded", "failed"]


class FormerRevision(msgspec.Struct, frozen=True):
    """What came of one revision."""

    revision: str
    message: str  # the commit's
    result: Result
    detail: str
    first_unix_s: float
    last_unix_s: float
    duration_s: float
    count: int = 1  # how often, one after the other, with the same result


class Suspension(msgspec.Struct, frozen=True):
    reason: str
    since_unix_s: float


class RevisionRecord(msgspec.Struct, frozen=True):
    last_attempted: str = ""  # revisions: `main@<commit>`
    last_good: str = ""  # validated, and made (or being made) the fleet's
    last_applied: str = ""  # published, and every process as it says
    applied_unix_s: float = 0.0
    suspended: Suspension | None = None
    allowed_empty: tuple[str, ...] = ()  # commits whose pusher said that removing everything is meant
    history: tuple[FormerRevision, ...] = ()  # the newest first

    def adopted(self, revision: str) -> "RevisionRecord":
        """It validates; from now on it is what the fleet should be."""
        return msgspec.structs.replace(self, last_attempted=revision, last_good=revision)

    def concluded(self, past: FormerRevision) -> "RevisionRecord":
        """Something came of a revision; an applied one is then the last applied."""
        newest = self.history[0] if self.history else None
        entry = msgspec.structs.replace(past, detail=past.detail[:_DETAIL_MAX_CHARS])
        if newest is not None and (newest.revision, newest.result) == (past.revision, past.result):
            again = msgspec.structs.replace(entry, first_unix_s=newest.first_unix_s, count=newest.count + 1)
            history = (again, *self.history[1:])
        else:
            history = (entry, *self.history)[:HISTORY_MAX]
        applied = past.result == "applied"
        return msgspec.structs.replace(
            self,
            history=history,
            last_attempted=self.last_attempted if past.result == "superseded" else past.revision,
            last_applied=past.revision if applied else self.last_applied,
            applied_unix_s=past.last_unix_s if applied else self.applied_unix_s,
        )

    def with_suspension(self, suspended: Suspension | None) -> "RevisionRecord":
        return msgspec.structs.replace(self, suspended=suspended)

    def allowing_empty(self, commit: str) -> "RevisionRecord":
        others = tuple(known for known in self.allowed_empty if known != commit)
        return msgspec.structs.replace(self, allowed_empty=(*others, commit)[-_ALLOWED_EMPTY_MAX:])


def read(path: Path) -> RevisionRecord:
    """An empty record where there is none that can be read."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_RECORD_MAX_BYTES), type=RevisionRecord)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return RevisionRecord()


def write(path: Path, record: RevisionRecord) -> None:
    replace_file(path, msgspec.json.format(msgspec.json.encode(record), indent=1))
