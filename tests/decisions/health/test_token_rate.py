"""Tokens a second by the engine's own count, through restarts and silence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.health.token_rate import MARK_EVERY_S, WINDOW_S, TokenRate, observe


def seen(*looks: tuple[float, int]) -> TokenRate:
    rate = TokenRate()
    for now_s, tokens in looks:
        rate = observe(rate, tokens, now_s)
    return rate


def test_worked_example_from_the_prologue() -> None:
    assert seen((0.0, 0), (5.0, 1000), (10.0, 4000)).per_s == 400.0


def test_what_is_older_than_the_window_counts_no_more() -> None:
    """A burst of an hour ago would show for as long as the engine runs."""
    looks = [(float(second), 100_000 if second else 0) for second in range(100)]
    assert seen(*looks).per_s == 0.0


def test_a_restarted_engine_begins_anew() -> None:
    """Its sum falls to zero: the difference would be a rate below zero."""
    assert seen((0.0, 50_000), (5.0, 60_000), (10.0, 20)).per_s == 0.0
    assert seen((0.0, 50_000), (5.0, 60_000), (10.0, 20), (20.0, 1020)).per_s == 100.0


def test_one_look_tells_nothing() -> None:
    assert seen((3.0, 1_000_000)).per_s == 0.0


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.integers(0, 10_000)), max_size=60))
def test_no_more_than_the_fastest_and_bounded(steps: list[tuple[float, int]]) -> None:
    rate, now_s, tokens, fastest = TokenRate(), 0.0, 0, 0.0
    for after_s, more in steps:
        now_s, tokens = now_s + after_s, tokens + more
        fastest = max(fastest, more / after_s if after_s > 0 else float("inf"))
        rate = observe(rate, tokens, now_s)
        assert 0.0 <= rate.per_s <= fastest + 1e-6 or rate.per_s == pytest.approx(fastest)
        assert len(rate.marks) <= WINDOW_S / MARK_EVERY_S + 1
