"""How much waiting may be foretold, learnt from who was late."""

import pytest

from functions.decisions.admission.patience import LATE, LEAST, MOST, Patience


def test_worked_example_of_patience() -> None:
    patience = Patience()
    patience.late()
    patience.late()
    assert patience.ratio == pytest.approx(0.801)
    for _ in range(197):
        patience.in_time()
    assert patience.ratio < MOST
    for _ in range(2):
        patience.in_time()
    assert patience.ratio == MOST


def test_it_stays_where_as_many_are_late_as_may_be() -> None:
    patience = Patience()
    for _ in range(10):
        patience.late()
    before = patience.ratio
    for number in range(10_000):
        (patience.late if number % round(1 / LATE) == 0 else patience.in_time)()
    assert patience.ratio == pytest.approx(before, abs=0.06)


def test_it_never_gives_up_altogether() -> None:
    patience = Patience()
    for _ in range(1000):
        patience.late()
    assert patience.ratio == LEAST
