"""The bucket of requests: never more than a minute's worth and what has emptied since."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.decisions.request_rate import RequestRate


def taken(rate: RequestRate, per_minute: int, now_s: float, tries: int = 1000) -> int:
    return sum(1 for _ in range(tries) if rate.try_take(per_minute, now_s) == 0.0)


def test_worked_example_from_the_prologue() -> None:
    rate = RequestRate()
    assert taken(rate, 60, 0.0, tries=60) == 60
    assert rate.try_take(60, 0.0) == pytest.approx(1.0)
    assert rate.try_take(60, 0.5) == pytest.approx(0.5)
    assert rate.try_take(60, 1.0) == 0.0


def test_what_is_left_and_when_all_is_there_again() -> None:
    rate = RequestRate()
    taken(rate, 60, 0.0, tries=15)
    assert rate.remaining(60) == 45
    assert rate.full_again_s(60) == pytest.approx(15.0)
    assert taken(rate, 60, 0.0) == 45
    assert rate.remaining(60) == 0


def test_a_larger_limit_makes_room_at_once_and_keeps_what_was_used() -> None:
    rate = RequestRate()
    taken(rate, 10, 0.0)
    assert rate.try_take(10, 0.0) > 0
    assert taken(rate, 25, 0.0) == 15


def test_a_smaller_limit_finds_the_bucket_full_but_never_overfull() -> None:
    rate = RequestRate()
    taken(rate, 1000, 0.0)
    assert rate.try_take(6, 0.0) == pytest.approx(10.0), "one request's worth of 6 a minute, not 995 of them"


def test_a_limit_of_nothing_lets_nothing_through() -> None:
    rate = RequestRate()
    assert taken(rate, 0, 0.0) == taken(rate, 0, 1e6) == 0
    assert rate.remaining(0) == 0 and rate.full_again_s(0) == 0.0


def test_time_that_runs_backwards_empties_nothing() -> None:
    rate = RequestRate()
    assert taken(rate, 5, 1000.0) == 5
    assert taken(rate, 5, 0.0) == taken(rate, 5, 1000.0) == 0


def test_idle_is_as_good_as_new() -> None:
    rate = RequestRate()
    taken(rate, 7, 100.0)
    assert not rate.is_idle(159.0)
    assert rate.is_idle(160.0)
    assert taken(rate, 7, 160.0) == 7


@settings(deadline=None)
@given(st.integers(1, 500), st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(1, 40)), max_size=60))
def test_never_lets_more_through_than_a_minute_and_what_time_has_emptied(
    per_minute: int, bursts: list[tuple[float, int]]
) -> None:
    rate = RequestRate()
    now_s, times = 0.0, list[float]()
    for pause_s, tries in bursts:
        now_s += pause_s
        times += [now_s] * taken(rate, per_minute, now_s, tries)
    for first, since_s in enumerate(times):  # in every window, not only from the start
        for last in range(first, len(times), 7):
            window_s = times[last] - since_s
            assert last - first + 1 <= per_minute + window_s * per_minute / 60.0 + 1e-6


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 30.0), st.integers(0, 300)), max_size=100))
def test_a_wait_is_as_long_as_it_says_whatever_limits_came_before(steps: list[tuple[float, int]]) -> None:
    rate = RequestRate()
    now_s = 0.0
    for pause_s, per_minute in steps:
        now_s += pause_s
        wait_s = rate.try_take(per_minute, now_s)
        assert 0.0 <= wait_s <= 60.0
        assert 0 <= rate.remaining(per_minute) <= per_minute
        if wait_s > 0.0 and per_minute > 0:
            copy = RequestRate(rate.level, rate.updated_s)
            assert copy.try_take(per_minute, now_s + wait_s) == 0.0
