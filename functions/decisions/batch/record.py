"""What is known of one batch: the whole of it, in one frozen value that is written anew at each move.

Records are numbered; each is written only where its number is still free (`gateway.batch.log`), so that of two who
move a batch at once one wins and the other looks again. Times are unix seconds, as clients see them.

Neighbours: `batch_moves` says which record may follow which; `batch_parts` counts what is done between two records.
"""

from dataclasses import dataclass, field
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
