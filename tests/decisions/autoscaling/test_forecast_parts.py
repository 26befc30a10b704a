"""Seasons, methods, scores and headroom: the formulas' worked examples."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.autoscaling.forecast import Need, replicas_needed
from functions.decisions.autoscaling.forecast_methods import (
    DAY_S,
    KEPT,
    METHODS,
    WEEK_S,
    Score,
    Season,
    pinball,
    predictions,
)


def season(levels: dict[float, float], period_s: float = DAY_S) -> Season:
    """Return a season with these values, keyed by the second in the middle of their slot."""
    found = Season(period_s)
    for at_s, value in sorted(levels.items()):
        found = found.with_value(at_s, value)
    return found.with_value(period_s + 1e6, 0.0)


def test_worked_example_of_a_slot() -> None:
    first = season({300.0: 100.0})
    for today, level in ((160.0, 124.0), (900.0, 140.0), (10.0, 80.0)):
        second = first.with_value(DAY_S + 300.0, today).with_value(DAY_S + 1000.0, 0.0)
        assert second.at(300.0) is None  # its neighbor is unknown
        assert second.levels[0] == pytest.approx(level)


def test_season_interpolates_between_slots_and_wraps_around() -> None:
    known = Season(1800.0)
    for at_s, value in ((300.0, 10.0), (900.0, 30.0), (1500.0, 50.0), (2100.0, 0.0)):
        known = known.with_value(at_s, value)
    assert known.at(600.0) == pytest.approx(20.0)
    assert known.at(1800.0) == pytest.approx(30.0)  # halfway from 50 to 10
    assert known.at(1800.0 + 600.0) == pytest.approx(20.0)


def test_slot_is_the_mean_of_its_values() -> None:
    known = Season(1800.0).with_value(0.0, 10.0).with_value(599.0, 30.0).with_value(600.0, 0.0)
    assert known.levels[0] == pytest.approx(20.0)


def test_worked_example_of_the_methods() -> None:
    bins, ended_s = [100.0, 102.0, 104.0, 106.0, 108.0], 10_260.0
    now_s, then_s = 10_200.0, 10_530.0
    known = season({9900.0: 180.0, 10_500.0: 220.0, 11_100.0: 1020.0})
    assert known.at(now_s) == pytest.approx(200.0)
    assert known.at(then_s) == pytest.approx(260.0)
    found = dict(zip(METHODS, predictions(bins, ended_s, 300.0, day=known, week=Season(WEEK_S)), strict=True))
    assert found["last"] == 108.0
    assert found["smooth"] == 104.0
    assert found["trend"] == pytest.approx(115.0)
    assert found["week"] == 107.0  # unknown: the present value
    assert found["day"] == pytest.approx(139.1)


def test_seasonal_factor_is_at_most_four() -> None:
    usual = season({300.0: 0.001, 900.0: 0.001, 1500.0: 1000.0, 2100.0: 1000.0})
    assert predictions([10.0], 630.0, 1000.0, day=usual, week=usual)[3] == pytest.approx(40.0)


def test_falling_trend_is_never_negative() -> None:
    falling = [1000.0, 800.0, 500.0, 100.0, 1.0]
    assert predictions(falling, 0.0, 7200.0, day=Season(DAY_S), week=Season(WEEK_S))[2] == 0.0


def test_worked_example_of_a_score() -> None:
    score = Score()
    for came in (90.0, 100.0, 110.0, 130.0):
        score = score.with_outcome(100.0, came, keep_ratio=1.0)
    assert score.wape == pytest.approx(50 / 430)
    assert score.upper(100.0, 0.75) == pytest.approx(110.0)
    assert score.upper(200.0, 1.0) == pytest.approx(260.0)
    assert score.upper(100.0, 0.25) == pytest.approx(100.0)  # never below the forecast


def test_old_errors_fade_and_expire() -> None:
    score = Score().with_outcome(100.0, 200.0, 0.5)
    for _ in range(KEPT + 5):
        score = score.with_outcome(100.0, 100.0, 0.5)
    assert score.wape == pytest.approx(0.0, abs=1e-6)
    assert len(score.errors) == KEPT
    assert Score().wape is None
    assert Score().upper(7.0, 0.9) == 7.0


def test_pinball_is_least_at_the_quantile() -> None:
    came = [float(value) for value in range(100)]

    def loss(upper: float) -> float:
        return sum(pinball(0.9, upper, value) for value in came)

    assert min(range(100), key=loss) in (89, 90)


def test_worked_example_of_headroom() -> None:
    def needed(mean: float, upper: float, swing: float) -> int:
        return replicas_needed(Need(mean=mean, soon=mean, soon_upper=upper, swing=swing), 0.8)

    assert needed(30.0, 30.0, 0.7) == 38
    assert needed(30.0, 33.0, 3.0) == 45
    assert needed(3.0, 3.0, 0.95) == 7
    assert replicas_needed(Need(mean=30.0, soon=15.0, soon_upper=22.0, swing=3.0), 0.8) == 38
    assert needed(0.0, 0.0, 0.0) == 0
    assert needed(8.0, 8.0, 0.0) == 10


@given(st.floats(0.1, 1e4), st.floats(1.0, 3.0), st.floats(0.0, 2.0), st.floats(1.0, 3.0))
def test_more_demand_never_needs_fewer(mean: float, doubt: float, swing: float, factor: float) -> None:
    def needed(times: float) -> int:
        one = mean * times
        return replicas_needed(Need(mean=one, soon=one, soon_upper=one * doubt, swing=swing * one), 0.8)

    assert needed(1.0) <= needed(factor)
    assert needed(1.0) >= mean / 0.8 - 1e-3


def test_headroom_ratio_shrinks_as_the_pool_grows() -> None:
    """Swings grow with the square root of the mean: a larger pool runs fuller, up to the target."""

    def fullness(mean: float) -> float:
        return mean / replicas_needed(Need(mean=mean, soon=mean, soon_upper=mean, swing=0.55 * mean**0.5), 0.8)

    assert fullness(3.0) < fullness(12.0) < fullness(100.0) <= 0.8
