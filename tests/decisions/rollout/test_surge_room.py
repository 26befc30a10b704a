"""A surge replica starts only if every bound on engines has room for it."""

import pytest

from functions.decisions.rollout.surge_room import Headroom, describe_shortage


@pytest.mark.parametrize(("each", "more"), [(0.3, ""), (0.45, "memory: 0.9 of 1 in use, one more takes 0.45")])
def test_worked_example_of_a_shared_accelerator(each: float, more: str) -> None:
    assert describe_shortage([Headroom("memory", 1.0, 2 * each, each)]) == more


@pytest.mark.parametrize(("used", "fits"), [(6, True), (7, False), (8, False), (9, False)])
def test_engine_that_needs_several_accelerators(used: int, fits: bool) -> None:
    assert (describe_shortage([Headroom("accelerators", 8, used, 2)]) == "") == fits


def test_one_full_bound_refuses_and_is_named() -> None:
    headrooms = [Headroom("nodes", 8, 1), Headroom("quota", 4, 4), Headroom("slots", 1, 1)]
    assert describe_shortage(headrooms).startswith("quota: 4 of 4")
    assert describe_shortage([]) == ""


def test_exact_fit_is_enough() -> None:
    assert describe_shortage([Headroom("memory", 1.0, 0.1 + 0.2 + 0.6, 0.1)]) == ""
