"""How much waiting may be foretold, learnt from who was late."""

import pytest

from functions.decisions.admission.bounds import LATE, LEAST, MOST, WaitTolerance


def test_worked_example_of_tolerance() -> None:
    tolerance = WaitTolerance()
    tolerance.late()
    tolerance.late()
    assert tolerance.ratio == pytest.approx(0.801)
    for _ in range(197):
        tolerance.in_time()
    assert tolerance.ratio < MOST
    for _ in range(2):
        tolerance.in_time()
    assert tolerance.ratio == MOST


def test_it_stays_where_as_many_are_late_as_may_be() -> None:
    tolerance = WaitTolerance()
    for _ in range(10):
        tolerance.late()
    before = tolerance.ratio
    for number in range(10_000):
        (tolerance.late if number % round(1 / LATE) == 0 else tolerance.in_time)()
    assert tolerance.ratio == pytest.approx(before, abs=0.06)


def test_it_never_gives_up_altogether() -> None:
    tolerance = WaitTolerance()
    for _ in range(1000):
        tolerance.late()
    assert tolerance.ratio == LEAST
