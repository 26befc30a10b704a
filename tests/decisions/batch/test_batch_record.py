"""Life of a batch: only transitions of the table, each written once, and every state reaches an end."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from functions.decisions.batch import record as batch_moves
from functions.decisions.batch.record import (
    MAX_CLAIMS,
    MOVES,
    TERMINAL,
    BatchRecord,
    IllegalMove,
    LineProblem,
    Status,
    Tally,
)
from functions.gateway.batch.files.names import is_id

PROBLEM = LineProblem("invalid_json_line", "no", 3)


def record(status: Status = "validating", **changes: Any) -> BatchRecord:
    of = BatchRecord(
        id="batch_" + "0" * 32,
        tenant="acme",
        key_id="ci",
        endpoint="/v1/chat/completions",
        input_file_id="file-" + "0" * 32,
        completion_window="24h",
        created_s=1,
        expires_s=86_401,
        output_file_id="file-" + "1" * 32,
        error_file_id="file-" + "2" * 32,
        status=status,
    )
    return dataclasses.replace(of, **changes)


def every_move(of: BatchRecord) -> dict[str, Any]:
    return {
        "validated": lambda: batch_moves.validated(of, 7, 2),
        "failed": lambda: batch_moves.failed(of, (PROBLEM,), 2),
        "completed": lambda: batch_moves.ended(of, "completed", 2),
        "expired": lambda: batch_moves.ended(of, "expired", 2),
        "cancelled": lambda: batch_moves.cancelled(of, 2),
        "finished": lambda: batch_moves.finished(of, Tally(1), 2, has_output=True, has_errors=False),
        "claimed": lambda: batch_moves.claimed(of, "g2", 2),
    }


@given(st.sampled_from(sorted(MOVES)), st.sampled_from(sorted(every_move(record()))))
def test_transition_outside_the_table_is_refused(status: Status, move: str) -> None:
    before = record(status)
    try:
        after = every_move(before)[move]()
    except IllegalMove:
        return
    assert after.number == before.number + 1
    assert after.status in MOVES[status] or (move == "claimed" and after.status == status)
    assert after.status == status or after.stamps[after.status] == 2
    assert dataclasses.replace(before) == record(status), "records are values"


def test_ended_batch_does_not_change() -> None:
    for status in TERMINAL:
        for move in every_move(record(status)).values():
            with pytest.raises(IllegalMove):
                move()


def test_cancellation_wins_over_a_later_end() -> None:
    cancelling = batch_moves.cancelled(record("in_progress", owner="g1", claims=1), 5)
    assert (cancelling.owner, cancelling.claims) == ("g1", 1), "the one to stop is the one who works on it"
    with pytest.raises(IllegalMove):
        batch_moves.ended(cancelling, "completed", 6)
    assert batch_moves.finished(cancelling, Tally(), 6, has_output=False, has_errors=False).status == "cancelled"


def test_batch_that_crashes_every_owner_fails() -> None:
    tired = record("in_progress", claims=MAX_CLAIMS)
    after = batch_moves.claimed(tired, "g9", 3)
    assert after.status == "failed" and after.errors[0].code == "too_many_restarts"


def test_each_claim_writes_its_own_files() -> None:
    first = batch_moves.claimed(record("finalizing"), "g1", 2)
    second = batch_moves.claimed(first, "g2", 3)
    written = [first.output_file_id, first.error_file_id, second.output_file_id, second.error_file_id]
    assert len(set(written)) == 4 and all(is_id("file", one) for one in written)
    over = batch_moves.finished(second, Tally(1), 4, has_output=True, has_errors=False)
    assert over.output_file_id == second.output_file_id
    assert sorted(batch_moves.unnamed_files(over)) == sorted(set(written) - {over.output_file_id})
    assert len(batch_moves.unnamed_files(record("failed", claims=MAX_CLAIMS))) == 2 * MAX_CLAIMS


class SharedLog(RuleBasedStateMachine):
    """Three gateways and a client move one batch, each by the record it last read; each number is written once."""

    def __init__(self) -> None:
        super().__init__()
        self.log = [record()]
        self.seen = dict.fromkeys(("g1", "g2", "g3", "client"), self.log[0])

    @rule(who=st.sampled_from(["g1", "g2", "g3", "client"]))
    def read_log(self, who: str) -> None:
        self.seen[who] = self.log[-1]

    @rule(who=st.sampled_from(["g1", "g2", "g3"]), move=st.sampled_from(sorted(every_move(record()))))
    def move(self, who: str, move: str) -> None:
        seen = self.seen[who]
        if move != "claimed" and (seen.owner != who or move == "cancelled"):
            return
        try:
            after = batch_moves.claimed(seen, who, 2) if move == "claimed" else every_move(seen)[move]()
        except IllegalMove:
            return
        self.append(who, after)

    @rule()
    def cancel(self) -> None:
        try:
            self.append("client", batch_moves.cancelled(self.seen["client"], 2))
        except IllegalMove:
            return

    def append(self, who: str, after: BatchRecord) -> None:
        """Append like a write with `If-None-Match: *`: a number that exists is refused."""
        if after.number == self.log[-1].number + 1:
            self.log.append(after)
            self.seen[who] = after

    @invariant()
    def it_ends_once_and_only_its_owner_ended_it(self) -> None:
        over = [one for one in self.log if one.is_over]
        assert len(over) <= 1 and (not over or self.log[-1] is over[0])
        for before, after in zip(self.log, self.log[1:], strict=False):
            assert after.claims == before.claims or after.claims == before.claims + 1
            assert after.status == "cancelling" or after.owner == before.owner or after.claims > before.claims


TestSharedLog = SharedLog.TestCase
TestSharedLog.settings = settings(max_examples=40, stateful_step_count=30)
