"""Tokens per second from the engine's own counter, across restarts and gaps."""

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


def test_samples_older_than_the_window_do_not_count() -> None:
    """Otherwise a burst of an hour ago would count for as long as the engine runs."""
    looks = [(float(second), 100_000 if second else 0) for second in range(100)]
    assert seen(*looks).per_s == 0.0


def test_rate_restarts_after_an_engine_restart() -> None:
    """The engine's counter falls to zero; the difference would be a negative rate."""
    assert seen((0.0, 50_000), (5.0, 60_000), (10.0, 20)).per_s == 0.0
    assert seen((0.0, 50_000), (5.0, 60_000), (10.0, 20), (20.0, 1020)).per_s == 100.0


def test_one_sample_gives_no_rate() -> None:
    assert seen((3.0, 1_000_000)).per_s == 0.0


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.integers(0, 10_000)), max_size=60))
def test_rate_never_exceeds_the_fastest_interval(steps: list[tuple[float, int]]) -> None:
    rate, now_s, tokens, fastest = TokenRate(), 0.0, 0, 0.0
    for after_s, more in steps:
        before_s, now_s, tokens = now_s, now_s + after_s, tokens + more
        passed_s = now_s - before_s  # differs from `after_s` by a rounding error
        fastest = max(fastest, more / passed_s if passed_s > 0 else float("inf"))
        rate = observe(rate, tokens, now_s)
        assert 0.0 <= rate.per_s <= fastest + 1e-6 or rate.per_s == pytest.approx(fastest)
        assert len(rate.marks) <= WINDOW_S / MARK_EVERY_S + 1
