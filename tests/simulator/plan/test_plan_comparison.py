"""Comparison of two configurations, paired by seed: noise is separated from effects, and SLOs decide the verdict."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.simulator.plan.comparison import ComparedFigure, Figure, Interval, all_compared, compared, interval_of
from functions.simulator.plan.slos import promise, verdict

TTFT = Figure("TTFT p99", "ms")
HITS = Figure("cache hits", "ratio", lower_is_better=False, matters_ratio=0.0, matters_from=0.005)
IN_TIME = Figure("in time", "ratio", lower_is_better=False, matters_ratio=0.0, matters_from=0.001)
BUSY = Figure("busy", "ratio", lower_is_better=None)


def test_worked_example_of_the_prologue() -> None:
    found = compared(TTFT, [400.0, 420.0, 410.0], [440.0, 470.0, 445.0])
    assert found.difference is not None
    assert found.difference.mean == pytest.approx(41.67, abs=0.01)
    assert (found.difference.low, found.difference.high) == (pytest.approx(28.8, abs=0.1), pytest.approx(54.5, abs=0.1))
    assert (found.before, found.marked) == (410.0, "worse")


def test_equal_windows_show_no_difference() -> None:
    found = compared(TTFT, [400.0, 900.0], [400.0, 900.0])
    assert found.difference == Interval(0.0, 0.0, 0.0)
    assert found.marked == "same"


def test_gains_and_losses_across_windows_are_noise() -> None:
    assert compared(TTFT, [400.0, 400.0, 400.0], [500.0, 300.0, 410.0]).marked == "same"


def test_negligible_difference_counts_as_same() -> None:
    assert compared(TTFT, [400.0, 410.0, 420.0], [401.0, 411.0, 421.0]).marked == "same"
    assert compared(TTFT, [400.0, 410.0, 420.0], [420.0, 430.0, 440.0]).marked == "worse"


def test_direction_of_improvement_depends_on_the_figure() -> None:
    assert compared(HITS, [0.5, 0.52], [0.3, 0.31]).marked == "worse"
    assert compared(HITS, [0.5, 0.52], [0.7, 0.71]).marked == "better"
    assert compared(BUSY, [0.5, 0.5], [0.9, 0.9]).marked == "same"


def test_windows_without_served_requests_are_excluded_from_pairs() -> None:
    found = compared(TTFT, [400.0, None, 420.0], [440.0, 9e9, 461.0])
    assert found.before == 410.0
    assert found.difference is not None
    assert found.difference.mean == pytest.approx(40.5)
    nobody = compared(TTFT, [None, None], [1.0, 2.0])
    assert (nobody.before, nobody.after, nobody.difference, nobody.marked) == (None, 1.5, None, "same")


def test_one_window_has_an_interval_of_its_single_value() -> None:
    assert interval_of([30.0]) == Interval(30.0, 30.0, 30.0)
    assert compared(TTFT, [400.0], [430.0]).marked == "worse"


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40))
def test_interval_contains_its_mean_and_flips_with_its_sign(differences: list[float]) -> None:
    found = interval_of(differences)
    turned = interval_of([-each for each in differences])
    assert found.low <= found.mean <= found.high
    assert (turned.low, turned.high) == (pytest.approx(-found.high), pytest.approx(-found.low))


def test_figures_missing_in_all_runs_are_omitted() -> None:
    found = all_compared({"a": TTFT, "b": TTFT}, [{"a": 1.0}, {"a": 2.0}], [{"a": 1.0}, {"a": 2.0, "b": None}])
    assert list(found) == ["a"]


def attained(before: list[float], after: list[float]) -> ComparedFigure:
    return compared(IN_TIME, list(before), list(after))


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [
        ([0.996, 0.997, 0.995], [0.970, 0.972, 0.968], "broken"),
        ([0.996, 0.997, 0.995], [0.993, 0.994, 0.992], "kept"),
        ([0.9912, 0.9958, 0.9901], [0.9990, 0.9840, 0.9850], "in doubt"),  # worse in the mean, but within noise
        ([0.950, 0.951, 0.949], [0.948, 0.949, 0.947], "missed"),  # by less than half a point more
        ([0.950, 0.951, 0.949], [0.920, 0.921, 0.919], "worsened"),
        ([0.950, 0.951, 0.949], [0.995, 0.996, 0.994], "mended"),
        ([0.950, 0.951, 0.949], [0.970, 0.971, 0.969], "eased"),
    ],
)
def test_worked_example_of_promises(before: list[float], after: list[float], state: str) -> None:
    made = promise("base", "interactive", 500.0, attained(before, after))
    assert made is not None
    assert made.state == state
    assert made.refuses == (state in {"broken", "worsened"})


def test_band_without_requests_has_no_promise() -> None:
    assert promise("base", "batch", 500.0, compared(IN_TIME, [None], [0.5])) is None


def test_broken_promise_outweighs_improvements() -> None:
    broken = promise("base", "interactive", 500.0, attained([0.996, 0.997], [0.96, 0.961]))
    assert broken is not None
    assert verdict([broken], ["better"], ["better", "better"]) == "breaks"


def test_first_tokens_in_time_outweigh_other_figures() -> None:
    assert verdict([], ["better", "same"], ["worse"]) == "better"
    assert verdict([], ["worse"], ["better"]) == "worse"
    assert verdict([], ["better", "worse"], []) == "mixed"
    assert verdict([], ["same"], ["better", "worse", "same"]) == "mixed"
    assert verdict([], [], ["same", "worse"]) == "worse"
    assert verdict([], ["same"], ["better"]) == "better"
    assert verdict([], ["same"], ["same"]) == "same"
