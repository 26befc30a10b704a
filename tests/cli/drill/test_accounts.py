"""Accounts of a drill: complete answers must be in ledger and traces; a shortfall fails the drill."""

from dataclasses import replace

from functions.cli.drill.accounts import owed
from functions.cli.drill.judging import judge
from functions.cli.drill.timeline import Accounts, Ending, RequestOutcome
from tests.cli.drill.test_judging import DRILL, GOOD


def one(ended_s: float, ending: Ending = "whole", tokens: int | None = 10, name: str = "") -> RequestOutcome:
    return RequestOutcome("steady", ended_s - 1.0, ended_s, ending, request_id=name or f"r{ended_s:g}", tokens=tokens)


def test_whole_answers_are_owed_and_no_others() -> None:
    found = owed((one(5.0), one(6.0, "broken_off"), one(7.0, "refused"), one(8.0, tokens=None)), 10.0, 0.0)
    assert (found.tokens, found.request_ids) == (10, frozenset({"r5", "r8"}))


def test_requests_unrecorded_by_a_killed_gateway_are_not_owed() -> None:
    outcomes = (one(6.9), one(8.0), one(10.5), one(14.0))
    assert owed(outcomes, 10.0, 3.0).request_ids == {"r6.9", "r14"}
    assert owed(outcomes, 10.0, 0.0).tokens == 40


def test_a_ledger_or_traces_that_have_less_than_is_owed_fail_the_drill() -> None:
    whole = Accounts(owed_tokens=100, ledger_tokens=100, owed_rows=4, trace_rows=4)
    assert judge(DRILL, replace(GOOD, accounts=whole)).passed
    for wrong in (replace(whole, ledger_tokens=99), replace(whole, trace_rows=3)):
        found = judge(DRILL, replace(GOOD, accounts=wrong))
        assert [check.ok for check in found.checks].count(False) == 1 and not found.passed


def test_what_could_not_be_asked_is_said_and_is_no_failure() -> None:
    untold = Accounts(100, None, 4, None, "the trace store: this fleet has none")
    found = judge(DRILL, replace(GOOD, accounts=untold))
    assert found.passed and [check.words for check in found.checks if check.ok is None] == [untold.why_not] * 2
