"""Cost of a request to its replica: the formulas, and that the parts add up to the whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.quota.dimensions import gpu_seconds, kv_token_seconds


def test_worked_example_from_the_prologue() -> None:
    assert gpu_seconds(400, 0.5, 4.0, 8.0) == pytest.approx(0.7)
    assert gpu_seconds(400, 0.5, 4.0, 8.0, accelerators=4) == pytest.approx(2.8), "of all of them, not of a quarter"
    assert kv_token_seconds(1000, 200, 0.2, 4.0) == pytest.approx(4600.0)


def test_negative_times_cost_nothing() -> None:
    assert kv_token_seconds(10, 10, -1.0, -1.0) == 0.0
    assert gpu_seconds(-5, 0.5, -1.0, 0.0) == 0.0


spans = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 200)), min_size=1, max_size=30)


@given(spans)
def test_request_costs_add_up_to_the_busy_time(decodes: list[tuple[int, int]]) -> None:
    """For one replica, second by second: each request uses the mean batch size of its own decode, as two heartbeats
    report it.
    """
    ends = [(start, start + seconds) for start, seconds in decodes]
    batch_at = [sum(1 for first, last in ends if first <= second < last) for second in range(401)]
    busy_s = sum(1 for batch in batch_at if batch)
    shares = []
    for first, last in ends:
        inverse = sum(1.0 / batch_at[second] for second in range(first, last)) / (last - first)
        shares.append(gpu_seconds(0, 0.5, float(last - first), 1.0 / inverse))
    assert sum(shares) == pytest.approx(busy_s)


def test_batch_size_is_estimated_from_start_and_end() -> None:
    """The gateway knows the batch size at the start and the end only. With 8 at a time, 4 s each and one started every
    half second, the sum is within 10 % of the busy time.
    """
    begun, decode_s, pause_s = 200, 4.0, 0.5
    total = sum(gpu_seconds(0, 0.5, decode_s, (8 + 8) / 2) for _ in range(begun))
    assert total == pytest.approx(begun * pause_s, rel=0.1)


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.floats(0, 100), st.floats(0, 100))
def test_more_of_anything_never_costs_less(prompt: int, output: int, prefill_s: float, decode_s: float) -> None:
    held = kv_token_seconds(prompt, output, prefill_s, decode_s)
    assert held <= kv_token_seconds(prompt + 1, output, prefill_s, decode_s)
    assert held <= kv_token_seconds(prompt, output + 1, prefill_s, decode_s)
    assert held <= kv_token_seconds(prompt, output, prefill_s, decode_s + 1.0)
