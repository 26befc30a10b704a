"""Hedging: when a first token is late."""

import pytest

from functions.decisions.routing.retry import UNKNOWN_RATIO, WINDOW, FirstTokens


def test_worked_example_of_the_prologue() -> None:
    tokens = FirstTokens()
    for number in range(100):
        tokens.record_first_token(0.2, 0.5 if number >= 90 else 0.2)
    assert tokens.wait_s(0.2, 0.3) == pytest.approx(0.5)
    assert tokens.wait_s(0.05, 0.3) == 0.3


def test_unknown_latency_allows_several_times_the_prediction() -> None:
    tokens = FirstTokens()
    tokens.record_first_token(0.2, 20.0)
    assert tokens.wait_s(0.2, 0.1) == pytest.approx(0.2 * UNKNOWN_RATIO)
    assert tokens.wait_s(0.0, 0.1) == 0.1, "an idle replica is predicted at nothing"


def test_old_first_tokens_are_forgotten() -> None:
    tokens = FirstTokens()
    for _ in range(WINDOW):
        tokens.record_first_token(1.0, 9.0)
    assert tokens.wait_s(1.0, 0.0) == pytest.approx(9.0)
    for _ in range(WINDOW):
        tokens.record_first_token(1.0, 1.0)
    assert tokens.wait_s(1.0, 0.0) == pytest.approx(1.0)
