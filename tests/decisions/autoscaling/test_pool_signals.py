"""Utilization from the length of engine steps, and measured start-up times."""

import pytest

from functions.decisions.autoscaling.forecast_memory import PUBLISHED_S, StartupTimes
from functions.decisions.autoscaling.signals import PoolSignals, step_utilization


def test_worked_example_of_utilization() -> None:
    assert step_utilization(0.010, 0.040, 0.9) == pytest.approx(0.675)


@pytest.mark.parametrize(
    ("itl_s", "busy", "expected"),
    [(None, 0.0, 0.0), (None, 0.5, None), (0.0, 0.5, None), (0.005, 1.0, 0.0), (1e9, 1.0, 1.0), (0.02, 7.0, 0.5)],
)
def test_impossible_utilization_is_unknown(itl_s: float | None, busy: float, expected: float | None) -> None:
    found = step_utilization(0.010, itl_s, busy)
    assert found == (pytest.approx(expected) if expected is not None else None)


def test_committed_counts_ready_and_starting_replicas() -> None:
    assert PoolSignals(at_s=0.0, ready=3, starting=2, warm=4, draining=5).committed == 5


def test_worked_example_of_starts() -> None:
    times = StartupTimes()
    for took_s in (41.0, 44.0, 62.0, 48.0):
        times = times.with_start("disk", took_s)
    assert times.expected_s("disk") == 62.0
    assert times.expected_s("s3") == PUBLISHED_S["s3"]


def test_one_fast_start_is_ignored_and_a_slow_one_expires() -> None:
    times = StartupTimes().with_start("disk", 5.0)
    assert times.expected_s("disk") == PUBLISHED_S["disk"]
    times = StartupTimes().with_start("disk", 500.0)
    assert times.expected_s("disk") == 500.0
    for _ in range(20):
        times = times.with_start("disk", 40.0)
    assert times.expected_s("disk") == 40.0


@pytest.mark.parametrize("took_s", [-1.0, float("nan"), 1e9])
def test_invalid_start_time_is_ignored(took_s: float) -> None:
    assert StartupTimes().with_start("disk", took_s) == StartupTimes()
