"""Quantile sketch: within 1 % for any values and merges, with conservative comparisons."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.quantile_sketch import (
    FIRST_BUCKET,
    GROWTH,
    LAST_BUCKET,
    LEAST_MS,
    MAX_BUCKETS,
    MOST_MS,
    QuantileSketch,
    bucket_of,
    upper_edge_ms,
)

values = st.lists(st.floats(LEAST_MS, MOST_MS * 0.99), min_size=1, max_size=200)


def sketch(*added: float) -> QuantileSketch:
    made = QuantileSketch()
    for value in added:
        made.add(value)
    return made


def test_worked_example_of_the_prologue() -> None:
    assert bucket_of(100.0) == 231
    assert (round(upper_edge_ms(230), 2), round(upper_edge_ms(231), 2)) == (99.5, 101.51)
    assert sketch(100.0).quantile(0.5) == pytest.approx(100.49, abs=0.01)
    assert MAX_BUCKETS == 986


@given(values, st.floats(0.01, 1.0))
def test_quantiles_are_within_one_percent(added: list[float], q: float) -> None:
    exact = sorted(added)[max(1, math.ceil(q * len(added))) - 1]
    assert sketch(*added).quantile(q) == pytest.approx(exact, rel=0.0101)


@given(values, values)
def test_merge_equals_adding_all_values(left: list[float], right: list[float]) -> None:
    merged, other = sketch(*left), sketch(*right)
    merged.merge(other)
    assert merged.buckets() == sketch(*right, *left).buckets()
    assert merged.count == len(left) + len(right)
    assert other.buckets() == sketch(*right).buckets()


@given(values, st.floats(LEAST_MS * 2, MOST_MS / 2))
def test_counts_are_conservative(added: list[float], limit: float) -> None:
    it = sketch(*added)
    assert it.count_above(limit) <= sum(value > limit for value in added)
    assert it.count_up_to(limit) <= sum(value <= limit * (1 + 1e-6) for value in added)
    beyond = limit * GROWTH * 1.0001
    assert it.count_above(limit) >= sum(value > beyond for value in added)


@given(values)
def test_sketch_round_trips(added: list[float]) -> None:
    it = sketch(*added)
    again = QuantileSketch.from_buckets(it.buckets())
    assert (again.buckets(), again.count) == (it.buckets(), it.count)


@pytest.mark.parametrize("value", [0.0, -5.0, LEAST_MS / 2])
def test_values_below_the_range_count_in_the_first_bucket(value: float) -> None:
    assert sketch(value).buckets() == {FIRST_BUCKET: 1}


@pytest.mark.parametrize("value", [MOST_MS, 1e12, math.inf, math.nan])
def test_large_and_invalid_values_count_in_the_last_bucket(value: float) -> None:
    assert sketch(value).buckets() == {LAST_BUCKET: 1}
    assert sketch(value).count_above(1000.0) == 1
    assert sketch(value).count_up_to(MOST_MS) == 0


@pytest.mark.parametrize("buckets", [{FIRST_BUCKET - 1: 1}, {LAST_BUCKET + 1: 1}, {0: 0}, {0: -3}])
def test_invalid_buckets_are_refused(buckets: dict[int, int]) -> None:
    with pytest.raises(ValueError, match="allowed"):
        QuantileSketch.from_buckets(buckets)


def test_empty_sketch_has_no_quantile() -> None:
    assert QuantileSketch().quantile(0.5) is None
    assert QuantileSketch().count_above(1.0) == 0


def test_sketch_size_is_bounded() -> None:
    it = sketch(*(0.001 * 1.01**step for step in range(3000)))
    assert len(it.buckets()) <= MAX_BUCKETS
