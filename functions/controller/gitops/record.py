"""Record of the branch's revisions on disk: tried, good and applied revisions, and a suspension by the operator.

An immutable value; `following` decides when to change it. It survives the controller, so that the next one knows
which revision to fall back to, whether it is suspended, and the history.
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
    revision: str
    message: str  # commit message
    result: Result
    detail: str
    first_unix_s: float
    last_unix_s: float
    duration_s: float
    count: int = 1  # consecutive times with the same result


class Suspension(msgspec.Struct, frozen=True):
    reason: str
    since_unix_s: float


class RevisionRecord(msgspec.Struct, frozen=True):
    last_attempted: str = ""  # form of a revision: `main@<commit>`
    last_good: str = ""  # valid, and applied or being applied
    last_applied: str = ""  # published, and every process follows it
    applied_unix_s: float = 0.0
    suspended: Suspension | None = None
    allowed_empty: tuple[str, ...] = ()  # commits whose pusher confirmed that everything should be removed
    history: tuple[FormerRevision, ...] = ()  # newest first

    def adopted(self, revision: str) -> "RevisionRecord":
        """Return the record with a new valid revision that the fleet should have."""
        return msgspec.structs.replace(self, last_attempted=revision, last_good=revision)

    def concluded(self, past: FormerRevision) -> "RevisionRecord":
        """Return the record with a revision's result in its history; the same result again only raises the newest
        entry's count. An applied revision becomes the last applied one."""
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
    """Read the record; return an empty one if the file is missing or malformed."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_RECORD_MAX_BYTES), type=RevisionRecord)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return RevisionRecord()


def write(path: Path, record: RevisionRecord) -> None:
    replace_file(path, msgspec.json.format(msgspec.json.encode(record), indent=1))
