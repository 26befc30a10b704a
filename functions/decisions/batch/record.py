"""Record of one batch: all of its state in one frozen value, written anew at each transition.

Records are numbered; each is written only where its number is still free (`gateway.batch.log`), so that of two who
move a batch at once one wins and the other looks again. Times are unix seconds, as clients see them.

Neighbours: `parts` counts what is done between two records.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
TERMINAL: frozenset[Status] = frozenset({"failed", "completed", "expired", "cancelled"})


@dataclass(frozen=True, slots=True)
class LineProblem:
    """What is wrong with an input file, as `batch.errors.data` has it."""

    code: str
    message: str
    line: int | None = None  # from 1; None: with the file as a whole
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """What durable results say: lines by outcome, and the tokens that engines counted."""

    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @property
    def done(self) -> int:
        return self.completed + self.failed

    def plus(self, other: "Tally") -> "Tally":
        return Tally(
            self.completed + other.completed,
            self.failed + other.failed,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.completion_tokens + other.completion_tokens,
        )


@dataclass(frozen=True, slots=True)
class BatchRecord:
    id: str
    tenant: str
    key_id: str  # whose key asked for it: its lines are asked with what that key may do
    endpoint: str
    input_file_id: str
    completion_window: str
    created_s: int
    expires_s: int
    output_file_id: str  # of the latest claim: each writes files of its own, and those of the last one count
    error_file_id: str
    metadata: dict[str, str] = field(default_factory=dict)
    output_expiry_s: int | None = None  # of the files that it writes; None: as long as files are kept
    number: int = 1
    status: Status = "validating"
    owner: str = ""  # the gateway process that works on it; empty: nobody yet
    claims: int = 0  # how often it changed hands
    ends_as: Status = "completed"  # what `finalizing` leads to
    stamps: dict[str, int] = field(default_factory=dict)  # when it came to each status
    errors: tuple[LineProblem, ...] = ()
    lines: int = 0  # requests in the input file, once validated
    tally: Tally = Tally()
    has_output: bool = False
    has_errors: bool = False

    @property
    def is_over(self) -> bool:
        return self.status in TERMINAL


# State machine of a batch: one table of transitions, one function a transition.
#
#     validating -> in_progress -> finalizing -> completed
#         |  |          |  |            '------> expired       (some lines came too late)
#         |  |          |  '-> cancelling -----> cancelled
#         |  |          |          ^
#         |  '--------------------'             (cancelled before it began)
#         '-> failed <- any of the above, where it has changed hands too often
#
# An illegal move raises and changes nothing. A claim changes the owner and no status: whoever holds the latest claim is
# the only one whose records are written, since each record's number is written once. Each claim has files of its own: a
# holder that was held up while it wrote its files, and goes on when the batch is long over, writes where nobody looks.
# (test_each_claim_writes_files_of_its_own)


MAX_CLAIMS = 100  # a batch that takes its gateway down each time must come to an end too
MOVES: dict[Status, frozenset[Status]] = {
    "validating": frozenset({"in_progress", "finalizing", "cancelling", "failed"}),
    "in_progress": frozenset({"finalizing", "cancelling", "failed"}),
    "finalizing": frozenset({"completed", "expired", "failed"}),
    "cancelling": frozenset({"cancelled", "failed"}),
    "completed": frozenset(),
    "expired": frozenset(),
    "cancelled": frozenset(),
    "failed": frozenset(),
}


class IllegalMove(Exception):
    """The batch is at a status from which this does not lead on; look at it again."""


def claimed(record: BatchRecord, owner: str, now_s: int) -> BatchRecord:
    """Somebody takes it over; failed where that was tried too often."""
    if record.is_over:
        raise IllegalMove(f"the batch is {record.status}")
    if record.claims >= MAX_CLAIMS:
        problem = LineProblem("too_many_restarts", f"The batch was taken up {MAX_CLAIMS} times and never came through.")
        return failed(replace(record, owner=owner), (problem,), now_s)
    claims = record.claims + 1
    return replace(
        record,
        number=record.number + 1,
        owner=owner,
        claims=claims,
        output_file_id=_file_of_claim(record.output_file_id, claims),
        error_file_id=_file_of_claim(record.error_file_id, claims),
    )


def unnamed_files(record: BatchRecord) -> list[str]:
    """Ids of what its holders may have written and the record of its end does not name."""
    mine = (record.output_file_id, record.error_file_id)
    named = {one for one, is_there in zip(mine, (record.has_output, record.has_errors), strict=True) if is_there}
    written = (_file_of_claim(file_id, claim) for claim in range(1, record.claims + 1) for file_id in mine)
    return [one for one in written if one not in named]


def validated(record: BatchRecord, lines: int, now_s: int) -> BatchRecord:
    return replace(_moved(record, "in_progress", now_s), lines=lines)


def failed(record: BatchRecord, errors: tuple[LineProblem, ...], now_s: int) -> BatchRecord:
    return replace(_moved(record, "failed", now_s), errors=errors)


def ended(record: BatchRecord, ends_as: Status, now_s: int) -> BatchRecord:
    """No further line is asked: results are put together, and then it is `ends_as`."""
    if ends_as not in ("completed", "expired"):
        raise IllegalMove(f"finalizing does not lead to {ends_as}")
    return replace(_moved(record, "finalizing", now_s), ends_as=ends_as)


def cancelled(record: BatchRecord, now_s: int) -> BatchRecord:
    """Somebody asked for its end. The owner stays: it is the one to stop."""
    return _moved(record, "cancelling", now_s)


def finished(record: BatchRecord, tally: Tally, now_s: int, *, has_output: bool, has_errors: bool) -> BatchRecord:
    """Its files are there."""
    ends_as: Status = "cancelled" if record.status == "cancelling" else record.ends_as
    moved = _moved(record, ends_as, now_s)
    return replace(moved, tally=tally, has_output=has_output, has_errors=has_errors)


def _file_of_claim(file_id: str, claim: int) -> str:
    """The batch's own id with the claim as its last two digits: `file-…3fa` becomes `file-…302` for the second."""
    return f"{file_id[:-2]}{claim:02x}"


def _moved(record: BatchRecord, status: Status, now_s: int) -> BatchRecord:
    if status not in MOVES[record.status]:
        raise IllegalMove(f"a batch that is {record.status} does not become {status}")
    return replace(record, number=record.number + 1, status=status, stamps={**record.stamps, status: now_s})
