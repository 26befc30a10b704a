"""Forecasts: the better method wins, replicas follow from tokens, and memory is bounded."""

from math import pi, sin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.decisions.autoscaling.forecast import BIN_S, Demand, forecast_demand, reactive_only, update_demand
from functions.decisions.autoscaling.forecast_methods import DAY_S
from tests.decisions.autoscaling.scaling_cases import policy, signals

POLICY = policy(startup_s=300.0)


def taught(
    demand: Demand, rates: list[float], every_s: float = BIN_S, begins_s: float = 0.0, ready: int = 10
) -> Demand:
    """Update the demand once per bin; all replicas together serve 50,000 tokens a second."""
    for index, rate in enumerate(rates):
        seen = signals(
            begins_s + index * every_s, ready, arriving_tokens_per_s=rate, utilization_ratio=min(0.9, rate / 50_000.0)
        )
        demand = update_demand(demand, seen, POLICY)
    return demand


def test_worked_example_of_a_forecast() -> None:
    demand = taught(Demand(), [30_000.0] * 30)
    forecast = forecast_demand(demand, POLICY, 1800.0)
    assert forecast is not None
    assert demand.replica_per_s == pytest.approx(5000.0)
    assert forecast.demand_per_s == pytest.approx(30_000.0)
    assert forecast.replicas == 8  # 6 / 0.8 = 7.5
    assert forecast.wape == pytest.approx(0.0)


def day(hour: float) -> float:
    """Return between 10,000 and 40,000 tokens a second, with a steep morning."""
    return 25_000.0 + 15_000.0 * max(-1.0, min(1.0, 3.0 * sin((hour - 9.0) * pi / 12.0)))


def test_the_better_method_wins() -> None:
    """With equal mornings the daily pattern wins; if every day differs, the present level wins."""
    minutes = [day(minute / 60.0 % 24.0) for minute in range(3 * 1440)]
    usual = taught(Demand(), minutes[: 2 * 1440 + 9 * 60])
    assert usual.best() in ("day", "trend")
    jumping = [10_000.0 if minute // 37 % 2 else 40_000.0 for minute in range(1440)]
    assert taught(Demand(), jumping).best() in ("last", "smooth")


def test_known_morning_peak_is_forecast_ahead() -> None:
    minutes = [day(minute / 60.0 % 24.0) for minute in range(3 * 1440 + 9 * 60)]
    foreseeing, reacting = (taught(kind, minutes, ready=100) for kind in (Demand(), reactive_only()))
    now_s = len(minutes) * BIN_S
    seen, now = forecast_demand(foreseeing, POLICY, now_s), forecast_demand(reacting, POLICY, now_s)
    assert seen is not None
    assert now is not None
    assert reacting.best() in ("last", "smooth")
    came = max(day(now_s / 3600.0 % 24.0 + ahead / 60.0) for ahead in range(6)) / 500.0 / 0.8
    assert seen.replicas >= came - 2
    assert seen.replicas > now.replicas


def test_deferrable_burst_needs_no_headroom() -> None:
    def after(deferrable: bool) -> int:
        demand = taught(Demand(), [30_000.0] * 30)
        for index in range(40):
            tokens = 90_000.0 if index % 10 == 0 else 25_000.0
            seen = signals(
                1800.0 + index * 15.0,
                10,
                arriving_tokens_per_s=tokens,
                deferrable_tokens_per_s=tokens - 20_000.0 if deferrable else 0.0,
                utilization_ratio=None,
            )
            demand = update_demand(demand, seen, POLICY)
        forecast = forecast_demand(demand, POLICY, 2400.0)
        assert forecast is not None
        return forecast.replicas

    assert after(deferrable=True) < after(deferrable=False)


def test_replica_rate_is_learned_only_from_conclusive_signals() -> None:
    demand = update_demand(Demand(), signals(0, 10, arriving_tokens_per_s=30_000.0, utilization_ratio=0.6), POLICY)
    assert demand.replica_per_s == pytest.approx(5000.0)
    for untold in (
        signals(15, 10, arriving_tokens_per_s=9e9, utilization_ratio=1.0),
        signals(15, 10, arriving_tokens_per_s=9e9, utilization_ratio=0.01),
        signals(15, 10, arriving_tokens_per_s=9e9, utilization_ratio=None),
        signals(15, 0, arriving_tokens_per_s=9e9, utilization_ratio=0.5),
        signals(15, 10, arriving_tokens_per_s=9e9, utilization_ratio=0.5, shed_per_s=1.0, arrivals_per_s=10.0),
    ):
        assert update_demand(demand, untold, POLICY).replica_per_s == pytest.approx(5000.0)
    wild = update_demand(demand, signals(15, 10, arriving_tokens_per_s=9e9, utilization_ratio=0.5), POLICY)
    # the sample is capped at twice the known rate, and weighs a twentieth
    assert wild.replica_per_s == pytest.approx(5250.0)


@pytest.mark.parametrize("tokens", [None, -1.0, float("nan"), float("inf")])
def test_invalid_figures_are_skipped(tokens: float | None) -> None:
    demand = taught(Demand(), [30_000.0] * 10)
    assert update_demand(demand, signals(700, 10, arriving_tokens_per_s=tokens), POLICY) == demand


def test_no_forecast_without_data() -> None:
    assert forecast_demand(Demand(), POLICY, 0.0) is None
    assert forecast_demand(taught(Demand(), [30_000.0]), POLICY, 60.0) is None
    unknown = update_demand(Demand(), signals(0, 10, utilization_ratio=None), POLICY)
    assert (
        forecast_demand(update_demand(unknown, signals(60, 10, utilization_ratio=None), POLICY), POLICY, 60.0) is None
    )


def test_recent_bins_are_dropped_after_a_long_gap() -> None:
    demand = taught(Demand(), [30_000.0] * 30)
    later = taught(demand, [3_000.0], begins_s=30 * BIN_S + 3600.0)
    assert later.bins == ()
    assert later.day == demand.day


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.0, 1e9), min_size=1, max_size=200), st.sampled_from([15.0, 60.0, 2000.0]))
def test_any_rates_keep_memory_small_and_forecasts_finite(rates: list[float], every_s: float) -> None:
    demand = taught(Demand(), rates, every_s)
    assert len(demand.ahead) <= 120
    assert len(demand.bins) <= 5
    assert all(len(score.errors) <= 360 for score in demand.scores)
    forecast = forecast_demand(demand, POLICY, len(rates) * every_s)
    assert forecast is None or forecast.replicas >= 0


def test_a_week_is_remembered_in_a_bounded_number_of_slots() -> None:
    demand = taught(Demand(), [10_000.0] * 2000, every_s=600.0)
    assert len(demand.week.levels) == 1008
    assert len(demand.day.levels) == DAY_S / 600.0
