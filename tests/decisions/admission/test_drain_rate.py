import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.admission.drain_rate import MAX_RETRY_AFTER_S, Rate, ReturnTimes, retry_after_s, wait_s


def test_worked_example_of_the_wait() -> None:
    assert wait_s(60_000, 6_000, 1, 4, 4 * 5_000) == pytest.approx(1.2)
    assert wait_s(20_000, 6_000, 1, 4, 4 * 5_000) == pytest.approx(1.0)


def test_unknown_rate_predicts_no_wait() -> None:
    assert wait_s(10**9, 10**9, 1, 1, 0.0) == 0.0


def test_lower_sample_is_ignored_while_the_queue_is_empty() -> None:
    rate = Rate(0.0)
    rate.record_dispatched(1000)
    rate.tick(1.0, 2, full=True)
    assert rate.per_replica == 500
    rate.record_dispatched(10)
    rate.tick(2.0, 2, full=False)
    assert rate.per_replica == 500
    rate.record_dispatched(10)
    rate.tick(3.0, 2, full=True)
    assert rate.per_replica < 400


def test_rate_is_unknown_until_the_pool_was_full() -> None:
    rate = Rate(0.0)
    rate.record_dispatched(10)
    rate.tick(1.0, 1, full=False)
    assert not rate.has_been_full
    rate.record_dispatched(5)
    rate.tick(2.0, 1, full=True)
    assert rate.has_been_full


def test_refused_requests_get_consecutive_return_times() -> None:
    returns = ReturnTimes()
    assert [returns.reserve_place(request, 80, 1.0, 100.0, 5.0) for request in (1, 2, 3)] == [1.0, 2.0, 3.0]


def test_return_on_time_claims_its_own_place_once() -> None:
    returns = ReturnTimes()
    returns.reserve_place(1, 80, 1.0, 100.0, 5.0)
    assert not returns.claim_place(2, 6.5), "another request"
    assert not returns.claim_place(1, 5.5), "too early"
    assert returns.claim_place(1, 6.5)
    assert not returns.claim_place(1, 6.6), "once"


def test_early_return_keeps_its_place() -> None:
    returns = ReturnTimes()
    returns.reserve_place(1, 80, 2.0, 100.0, 5.0)
    assert returns.reserve_place(1, 80, 2.0, 100.0, 6.0) == 1.0
    assert len(returns) == 1


def test_unclaimed_place_expires() -> None:
    returns = ReturnTimes()
    returns.reserve_place(1, 80, 1.0, 100.0, 5.0)
    assert returns.has_due_place(6.5, 5.5) and not returns.has_due_place(5.9, 5.5)
    assert not returns.has_due_place(99.0, 60.0)
    assert len(returns) == 0


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 100)), min_size=1, max_size=50))
def test_no_return_time_is_beyond_the_bound(sent: list[tuple[int, float]]) -> None:
    returns, now_s = ReturnTimes(), 0.0
    for request, (cost, later_s) in enumerate(sent):
        now_s += later_s
        assert returns.reserve_place(request, cost, 2.0, 50.0, now_s) <= MAX_RETRY_AFTER_S


@given(st.floats(0, MAX_RETRY_AFTER_S), st.text(max_size=40))
def test_retry_after_is_never_early_and_at_most_a_quarter_late(after_s: float, request_id: str) -> None:
    told_s = retry_after_s(after_s, request_id)
    assert max(1.0, after_s) <= told_s <= max(1.0, after_s * 1.25 + 1)
    assert told_s == retry_after_s(after_s, request_id)


def test_retry_after_is_spread_over_callers() -> None:
    assert len({retry_after_s(20.0, f"req-{number}") for number in range(50)}) >= 4


def test_rate_expires_after_ten_seconds() -> None:
    rate = Rate(0.0)
    rate.record_dispatched(10)
    rate.tick(1.0, 1, full=True)
    rate.tick(11.0, 1, full=False)
    assert rate.has_been_full
    rate.tick(11.5, 1, full=False)
    assert not rate.has_been_full, "the engines may have been slow then"


def test_rate_does_not_expire_while_requests_are_refused() -> None:
    rate = Rate(0.0)
    rate.record_dispatched(10)
    rate.tick(1.0, 1, full=True)
    rate.mark_full(9.0)
    rate.tick(18.0, 1, full=False)
    assert rate.has_been_full


def test_rate_in_the_first_second_is_what_was_dispatched_so_far() -> None:
    rate = Rate(0.0)
    rate.record_dispatched(100)
    assert rate.rate_so_far(0.5, 2) == 50.0
    assert rate.rate_so_far(0.5, 0) == 0.0
    rate.tick(1.0, 2, full=True)
    assert rate.rate_so_far(1.5, 2) == 50.0


def test_return_on_time_without_room_is_postponed_ahead_of_others() -> None:
    returns = ReturnTimes()
    for request in (1, 2, 3):
        returns.reserve_place(request, 800, 1.0, 100.0, 5.0)
    assert returns.claim_place(1, 6.5)
    assert returns.postpone_place(1, 0.5, 6.5) == 0.5
    assert not returns.claim_place(1, 6.9) and returns.claim_place(1, 7.1)


def test_expired_places_delay_no_later_return() -> None:
    times = ReturnTimes()
    for request in range(40):
        times.reserve_place(request, cost=100.0, wait_s=1.0, drain_per_s=20.0, now_s=0.0)
    assert times.reserve_place(99, cost=100.0, wait_s=1.0, drain_per_s=20.0, now_s=0.0) > 100.0
    for _ in range(20):
        times.has_no_places(1_000.0)
    assert times.reserve_place(100, cost=100.0, wait_s=1.0, drain_per_s=20.0, now_s=1_000.0) == 1.0


def test_postponed_return_is_at_most_the_maximum() -> None:
    times = ReturnTimes()
    assert times.postpone_place(1, wait_s=9_000.0, now_s=0.0) == MAX_RETRY_AFTER_S
    assert len(times) == 0
