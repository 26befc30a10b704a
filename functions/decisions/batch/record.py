"""Record of one batch: its whole state in one frozen value, rewritten at each transition.

Records are numbered, and each is written only if its number is still free (`gateway.batch.log`). If two gateways move
a batch together, one succeeds and the other reads again. Times are unix seconds, as clients see them.

Neighbours: `parts` counts results between two records.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
TERMINAL: frozenset[Status] = frozenset({"failed", "completed", "expired", "cancelled"})


@dataclass(frozen=True, slots=True)
class LineProblem:
    """A problem of an input file, as in `batch.errors.data`."""

    code: str
    message: str
    line: int | None = None  # from 1; None: the file as a whole
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """Durable results: lines by outcome, and the tokens that engines counted."""

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
    key_id: str  # key that created the batch: its lines are sent with that key's permissions
    endpoint: str
    input_file_id: str
    completion_window: str
    created_s: int
    expires_s: int
    output_file_id: str  # belongs to the latest claim: each claim has its own files, and the last claim's count
    error_file_id: str
    metadata: dict[str, str] = field(default_factory=dict)
    output_expiry_s: int | None = None  # expiry of the files that it writes; None: as long as files are kept
    number: int = 1
    status: Status = "validating"
    owner: str = ""  # gateway process that works on it; empty: none yet
    claims: int = 0  # number of claims so far
    ends_as: Status = "completed"  # status after `finalizing`
    stamps: dict[str, int] = field(default_factory=dict)  # time of each status
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
#         |  |          |  |            '------> expired       (some lines were too late)
#         |  |          |  '-> cancelling -----> cancelled
#         |  |          |          ^
#         |  '--------------------'             (cancelled before it started)
#         '-> failed <- any of the above, after too many claims
#
# An illegal move raises and changes nothing. A claim changes the owner and not the status. Only the holder of the
# latest claim can write records, since each number is written once. Each claim has its own files: a stalled former
# owner writes to files that are never read (test_each_claim_writes_its_own_files).


MAX_CLAIMS = 100  # ends a batch that crashes its gateway each time
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
    """The batch's status does not allow this move; read the batch again."""


def claimed(record: BatchRecord, owner: str, now_s: int) -> BatchRecord:
    """Return the record with a new owner and new output files; failed after MAX_CLAIMS claims. IllegalMove if the batch
    is over."""
    if record.is_over:
        raise IllegalMove(f"the batch is {record.status}")
    if record.claims >= MAX_CLAIMS:
        problem = LineProblem("too_many_restarts", f"The batch was restarted {MAX_CLAIMS} times and never finished.")
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
    """Return the ids of output and error files that any claim's owner may have written and the final record does not
    name."""
    mine = (record.output_file_id, record.error_file_id)
    named = {one for one, is_there in zip(mine, (record.has_output, record.has_errors), strict=True) if is_there}
    written = (_file_of_claim(file_id, claim) for claim in range(1, record.claims + 1) for file_id in mine)
    return [one for one in written if one not in named]


def validated(record: BatchRecord, lines: int, now_s: int) -> BatchRecord:
    return replace(_moved(record, "in_progress", now_s), lines=lines)


def failed(record: BatchRecord, errors: tuple[LineProblem, ...], now_s: int) -> BatchRecord:
    return replace(_moved(record, "failed", now_s), errors=errors)


def ended(record: BatchRecord, ends_as: Status, now_s: int) -> BatchRecord:
    """Return the record as finalizing: no more lines are sent, results are assembled, and then the status is `ends_as`
    (completed or expired). IllegalMove otherwise."""
    if ends_as not in ("completed", "expired"):
        raise IllegalMove(f"finalizing does not lead to {ends_as}")
    return replace(_moved(record, "finalizing", now_s), ends_as=ends_as)


def cancelled(record: BatchRecord, now_s: int) -> BatchRecord:
    """Return the record as cancelling. The owner stays, because it must stop the batch."""
    return _moved(record, "cancelling", now_s)


def finished(record: BatchRecord, tally: Tally, now_s: int, *, has_output: bool, has_errors: bool) -> BatchRecord:
    """Return the record with its final status and tally: the files are written."""
    ends_as: Status = "cancelled" if record.status == "cancelling" else record.ends_as
    moved = _moved(record, ends_as, now_s)
    return replace(moved, tally=tally, has_output=has_output, has_errors=has_errors)


def _file_of_claim(file_id: str, claim: int) -> str:
    """Return the file's id with the claim as its last two digits: `file-…3fa` becomes `file-…302` for the second."""
    return f"{file_id[:-2]}{claim:02x}"


def _moved(record: BatchRecord, status: Status, now_s: int) -> BatchRecord:
    if status not in MOVES[record.status]:
        raise IllegalMove(f"a batch that is {record.status} does not become {status}")
    return replace(record, number=record.number + 1, status=status, stamps={**record.stamps, status: now_s})
