"""Formulas of the overload ladder: excess load, shares that bands give up, and replicas needed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.overload.ladder_formulas import (
    LEAST_KEPT_RATIO,
    excess_ratio,
    floor_ratios,
    gives_way,
    kept_ratios,
    replicas_wanted,
    target_headroom_ratio,
)

RATIOS = st.floats(0.0, 1.0)
BANDS = st.tuples(*[st.floats(0.0, 1.0)] * 3).filter(lambda parts: sum(parts) > 0.01)


def test_worked_example_of_the_excess() -> None:
    assert excess_ratio(100_000, 4 * 5_000, 40_000, 0.5) == pytest.approx(0.87)


def test_load_within_capacity_has_no_excess() -> None:
    assert excess_ratio(20_000, 20_000, 5_000, 0.5) == 0.0
    assert excess_ratio(0.0, 0.0, 1_000, 0.5) == 0.0
    assert excess_ratio(10.0, 0.0, 0, 0.5) == 1.0


def test_worked_example_of_kept_ratios() -> None:
    floors = floor_ratios((0.6, 0.3, 0.05), (0.3, 0.5, 0.2), 0.5)
    assert floors == pytest.approx((1.0, 0.3, 0.125))
    kept, left = kept_ratios(0.3, (0.3, 0.5, 0.2), floors)
    assert kept == pytest.approx((1.0, 0.75, 0.125))
    assert left == 0.0


def test_worked_example_of_replicas() -> None:
    assert replicas_wanted(100_000, 5_000) == 25
    assert replicas_wanted(4_000, 5_000) == 1
    assert replicas_wanted(0.0, 5_000) == 0


def test_another_pool_is_sent_nothing_once_it_is_four_fifths_full() -> None:
    assert [target_headroom_ratio(use) for use in (0.0, 0.6, 0.7, 0.8, 1.2)] == pytest.approx([1.0, 1.0, 0.5, 0.0, 0.0])


@given(RATIOS, BANDS, st.floats(0.0, 2.0))
def test_bands_give_up_load_in_order_and_none_starves(excess: float, came: tuple[float, ...], capacity: float) -> None:
    parts = tuple(part / sum(came) for part in came)
    floors = floor_ratios((0.6, 0.3, 0.05), parts, capacity)
    kept, left = kept_ratios(excess, parts, floors)
    assert kept[0] == 1.0
    assert all(LEAST_KEPT_RATIO <= ratio <= 1.0 for ratio in kept)
    assert kept[1] == 1.0 or parts[2] == 0.0 or kept[2] == pytest.approx(floors[2])  # batch has given up all it can
    given_away = sum((1.0 - ratio) * part for ratio, part in zip(kept, parts, strict=True))
    assert given_away + left == pytest.approx(excess, abs=1e-6)


@given(RATIOS, RATIOS, BANDS)
def test_more_excess_never_keeps_more(one: float, other: float, came: tuple[float, ...]) -> None:
    parts = tuple(part / sum(came) for part in came)
    floors = floor_ratios((0.6, 0.3, 0.05), parts, 0.5)
    less, more = (kept_ratios(excess, parts, floors)[0] for excess in sorted((one, other)))
    assert all(a >= b - 1e-9 for a, b in zip(less, more, strict=True))


@pytest.mark.parametrize("kept", [0.05, 0.3, 0.5, 0.97])
def test_any_run_of_requests_keeps_the_share(kept: float) -> None:
    for start in (0, 1_000_003):
        refused = sum(gives_way(kept, number) for number in range(start, start + 400))
        assert refused / 400 == pytest.approx(1.0 - kept, abs=0.01)


def test_kept_ratio_of_one_refuses_no_request() -> None:
    assert not any(gives_way(1.0, number) for number in range(1_000))
