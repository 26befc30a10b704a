"""Longest predicted wait that is still accepted, learned from how many requests were late."""

import pytest

from functions.decisions.admission.bounds import LATE, LEAST, MOST, WaitTolerance


def test_worked_example_of_tolerance() -> None:
    tolerance = WaitTolerance()
    tolerance.record_late()
    tolerance.record_late()
    assert tolerance.ratio == pytest.approx(0.801)
    for _ in range(197):
        tolerance.record_in_time()
    assert tolerance.ratio < MOST
    for _ in range(2):
        tolerance.record_in_time()
    assert tolerance.ratio == MOST


def test_tolerance_is_steady_at_the_allowed_share_of_late_requests() -> None:
    tolerance = WaitTolerance()
    for _ in range(10):
        tolerance.record_late()
    before = tolerance.ratio
    for number in range(10_000):
        (tolerance.record_late if number % round(1 / LATE) == 0 else tolerance.record_in_time)()
    assert tolerance.ratio == pytest.approx(before, abs=0.06)


def test_tolerance_never_falls_below_its_minimum() -> None:
    tolerance = WaitTolerance()
    for _ in range(1000):
        tolerance.record_late()
    assert tolerance.ratio == LEAST
