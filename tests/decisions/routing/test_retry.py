"""Retries: bounded by bytes sent, attempts, deadline and a budget."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.decisions.routing.retry import RETRY_AFTER_MAX_S, AttemptFailure, RetryBudget, may_retry, retry_after_s

RATIO = 0.2


@pytest.mark.parametrize(
    ("failures", "now_s", "body_bytes_sent", "allowed"),
    [
        ((AttemptFailure.CONNECT,), 0.0, 0, True),
        ((AttemptFailure.CONNECT, AttemptFailure.RESET), 0.0, 0, True),
        ((AttemptFailure.CONNECT, AttemptFailure.RESET, AttemptFailure.RESET), 0.0, 0, False),
        ((AttemptFailure.CONNECT,), 0.0, 1, False),
        ((AttemptFailure.CONNECT,), 10.0, 0, False),
        ((AttemptFailure.CONNECT,), 9.999, 0, True),
        ((AttemptFailure.ENGINE_ERROR,), 0.0, 0, True),
        ((AttemptFailure.ENGINE_ERROR, AttemptFailure.ENGINE_ERROR), 0.0, 0, False),
        ((AttemptFailure.ENGINE_ERROR, AttemptFailure.OVERLOADED), 0.0, 0, True),
        ((AttemptFailure.TOO_LARGE,), 0.0, 0, False),
    ],
)
def test_retry_is_allowed_within_attempts_deadline_and_sent_bytes(
    failures: tuple[AttemptFailure, ...], now_s: float, body_bytes_sent: int, allowed: bool
) -> None:
    assert may_retry(failures, 3, now_s, deadline_s=10.0, body_bytes_sent=body_bytes_sent) is allowed


def spent(budget: RetryBudget, now_s: float) -> int:
    """Return how many retries the budget grants at one moment until it is empty."""
    return sum(1 for _ in range(1000) if budget.try_spend(RATIO, now_s))


def test_retries_are_a_share_of_requests() -> None:
    budget = RetryBudget(tokens=0.0)
    for _ in range(50):
        budget.on_request(RATIO, 0.0)
    assert spent(budget, 0.0) in {9, 10}  # 50 x 0.2, less floating point error


def test_idle_gateway_may_retry() -> None:
    budget = RetryBudget(tokens=0.0)
    assert not budget.try_spend(RATIO, 0.0)
    assert spent(budget, 1.0) == 10


def test_budget_ratio_of_zero_allows_no_retries() -> None:
    budget = RetryBudget()
    assert not budget.try_spend(0.0, 1000.0)
    assert budget.try_spend(0.01, 1000.0)


def test_as_many_attempts_as_the_policy_says() -> None:
    assert not may_retry((AttemptFailure.CONNECT,), 1, 0.0, deadline_s=10.0, body_bytes_sent=0)
    assert may_retry((AttemptFailure.CONNECT,) * 4, 5, 0.0, deadline_s=10.0, body_bytes_sent=0)


def test_saved_budget_is_bounded() -> None:
    budget = RetryBudget()
    assert spent(budget, 1e6) == 100


def test_time_that_runs_backwards_grants_nothing() -> None:
    budget = RetryBudget(tokens=0.0, updated_s=100.0)
    assert not budget.try_spend(RATIO, 50.0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 0.5)), max_size=300))
def test_the_budget_never_grants_more_than_it_was_given(steps: list[tuple[bool, float]]) -> None:
    budget = RetryBudget(tokens=10.0)
    now_s, requests, granted = 0.0, 0, 0
    for is_request, pause_s in steps:
        now_s += pause_s
        if is_request:
            requests += 1
            budget.on_request(RATIO, now_s)
        elif budget.try_spend(RATIO, now_s):
            granted += 1
        assert granted <= 10.0 + 0.2 * requests + 10.0 * now_s + 1e-6
        assert budget.tokens >= 0.0


@pytest.mark.parametrize(
    ("said", "wait_s"),
    [
        (b"2.5", 2.5),
        (b"86400", RETRY_AFTER_MAX_S),
        (b"0", 0.0),
        (b"", 0.0),
        (b"-3", 0.0),
        (b"nan", 0.0),
        (b"1e9", 0.0),
        (b".", 0.0),
        (b"1.2.3", 0.0),
        (b"9" * 400, 0.0),
        (b"Sun, 22 Nov 2026 02:00:00 GMT", 0.0),
        ("\N{SUPERSCRIPT TWO}".encode(), 0.0),
    ],
)
def test_worked_example_of_retry_after(said: bytes, wait_s: float) -> None:
    assert retry_after_s(said) == wait_s
