"""Bytes a second."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.artifacts.swarm.chunk_clients import Bandwidth


def test_worked_example() -> None:
    rate = Bandwidth(1000.0, clock=lambda: 50.0)
    assert rate.reserve(500) == pytest.approx(0.4)
    assert rate.reserve(500) == pytest.approx(0.9)


def test_no_rate_is_no_waiting() -> None:
    assert Bandwidth().reserve(10**12) == 0.0


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 3)), min_size=1, max_size=60))
def test_never_more_goes_through_than_rate_and_burst_allow(steps: list[tuple[int, float]]) -> None:
    now_s = 0.0
    rate = Bandwidth(1000.0, clock=lambda: now_s)
    through: list[tuple[float, int]] = []
    for size_bytes, pause_s in steps:
        now_s += pause_s
        through.append((now_s + rate.reserve(size_bytes), size_bytes))
    for first, (from_s, _) in enumerate(through):
        for last in range(first, len(through)):
            passed = sum(size for _, size in through[first + 1 : last + 1])
            assert passed <= 1000 * (through[last][0] - from_s) + 100 + 1e-6
