"""Fallback: which pool is next, and which requests are shifted first as a pool fills."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import PoolName
from functions.api.snapshot import FallbackEntry
from functions.decisions.routing import fallback

A, B, C, D, E = (PoolName(name) for name in "abcde")


def step(source: PoolName, target: PoolName, *tiers: str, when: str = "saturated") -> FallbackEntry:
    return FallbackEntry(when, source, target, tiers)  # type: ignore[arg-type]


def test_fallback_steps_apply_in_written_order() -> None:
    steps = [step(A, C), step(A, B), step(B, D), step(A, E, when="unavailable")]
    assert list(fallback.targets(steps, A, "saturated", "free", (A,))) == [C, B]
    assert list(fallback.targets(steps, A, "unavailable", "free", (A,))) == [E]


def test_a_step_may_be_for_some_tiers_only() -> None:
    steps = [step(A, B, "free"), step(A, C)]
    assert list(fallback.targets(steps, A, "saturated", "free", (A,))) == [B, C]
    assert list(fallback.targets(steps, A, "saturated", "enterprise", (A,))) == [C]


def test_no_pool_is_tried_twice_and_hops_are_bounded() -> None:
    circle = [step(A, B), step(B, C), step(C, A), step(C, D), step(D, E)]
    way = [A]
    while found := next(fallback.targets(circle, way[-1], "saturated", "free", tuple(way)), None):
        way.append(found)
    assert way == [A, B, C, D], "three hops, and never back to A"


def test_shift_targets_are_the_first_serving_pool_of_each_tier() -> None:
    steps = [step(A, B), step(A, C, "free"), step(A, D, when="unavailable"), step(A, E), step(A, D)]
    assert list(fallback.shift_targets(steps, A, lambda pool: True)) == [B]
    assert list(fallback.shift_targets(steps, A, lambda pool: pool != B)) == [C, E]
    assert list(fallback.shift_targets(steps, B, lambda pool: True)) == []


def test_worked_example_of_the_prologue() -> None:
    pressure = fallback.pressure_ratio(375.0, 500.0)
    assert pressure == 0.75
    shifted = sum(fallback.shifts(pressure, 0.0, draw / 1000) for draw in range(1000))
    assert shifted == 500
    assert not any(fallback.shifts(pressure, 0.8, draw / 1000) for draw in range(1000))
    assert fallback.shifts(1.0, 0.8, 0.999)
    assert fallback.pressure_ratio(10_000.0, None) == 0.0, "nothing was promised"


@given(st.floats(0, 2), st.floats(0, 2), st.floats(0, 1), st.floats(0, 1, exclude_max=True))
def test_more_pressure_never_shifts_fewer_requests(low: float, high: float, cached_ratio: float, draw: float) -> None:
    low, high = sorted((low, high))
    assert fallback.shifts(high, cached_ratio, draw) or not fallback.shifts(low, cached_ratio, draw)


@pytest.mark.parametrize(
    ("prompt", "exact", "output", "window", "may"),
    [
        (900, True, 100, 1000, True),
        (901, True, 100, 1000, False),
        (800, False, None, 1000, False),
        (799, False, None, 1000, True),
        (800, False, None, 1001, True),
        (10, False, 4096, 2048, False),
    ],
)
def test_prompt_and_output_must_fit(prompt: int, exact: bool, output: int | None, window: int, may: bool) -> None:
    assert fallback.fits(prompt, exact=exact, output_tokens=output, window_tokens=window) is may
