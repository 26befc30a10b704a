"""Pace of a batch: faster while requests succeed, slower after 429 or 503, and with headroom for the tenant's own
calls.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.batch.pace import MAX_TRIES, Again, BatchPace, judge


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_never_a_failure(status: int) -> None:
    verdict = judge(status, 3.0, tries=1000, draw=0.0)
    assert verdict == Again(3.0, told=True)


def test_failure_is_the_result_after_four_tries() -> None:
    waits = [judge(502, None, tries, 0.0) for tries in range(1, MAX_TRIES)]
    assert waits == [Again(1.0, told=False), Again(2.0, told=False), Again(4.0, told=False)]
    assert judge(502, None, MAX_TRIES, 0.0) == "done"


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 413, 422])
def test_permanent_status_is_the_result_at_once(status: int) -> None:
    assert judge(status, None, 1, 0.5) == "done"


@given(st.floats(0, 1e9), st.floats(0, 0.999))
def test_a_wait_is_bounded_and_spread(retry_after_s: float, draw: float) -> None:
    verdict = judge(429, retry_after_s, 1, draw)
    assert isinstance(verdict, Again) and 0.5 <= verdict.after_s <= 750
    assert verdict.after_s >= min(retry_after_s, 600.0)


def test_one_wave_of_429s_halves_the_window_once() -> None:
    pace = BatchPace(32.0)
    for _ in range(2000):
        pace.answered()
    assert pace.window == 32.0 and pace.may_begin(31, 0.0) and not pace.may_begin(32, 0.0)
    for _ in range(32):
        pace.slow_down(429, 2.0, 10.0)
    assert pace.window == 16.0
    assert not pace.may_begin(0, 11.9) and pace.may_begin(0, 12.0)


def test_window_never_falls_below_one_line() -> None:
    pace = BatchPace(32.0)
    for second in range(100):
        pace.slow_down(429, 1.0, float(second))
    assert pace.may_begin(0, 101.0) and not pace.may_begin(1, 101.0)


def test_full_pool_shrinks_the_window_without_pausing_the_batch() -> None:
    pace = BatchPace(32.0)
    pace.slow_down(503, 4.0, 10.0)
    assert pace.window == 2.0 and pace.may_begin(1, 10.0) and not pace.may_begin(2, 10.0)


def test_quarter_of_the_limit_stays_for_the_tenants_own_calls() -> None:
    pace = BatchPace(32.0)
    pace.keep_headroom(6000, 100, reset_s=9.0, now_s=100.0)
    assert not pace.may_begin(0, 101.4) and pace.may_begin(0, 101.6)
    pace.keep_headroom(6000, 250, reset_s=7.5, now_s=200.0)
    assert pace.may_begin(0, 200.0)


def test_small_full_bucket_does_not_delay_the_batch() -> None:
    """83,331 is the largest burst of 500,000 tokens a minute, so a full bucket is no reason to wait."""
    pace = BatchPace(32.0)
    pace.keep_headroom(500_000, 83_331, reset_s=0.001, now_s=100.0)
    assert pace.may_begin(0, 100.0)
