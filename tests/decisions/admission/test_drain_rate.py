import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.admission.drain_rate import MAX_RETRY_AFTER_S, Rate, ReturnTimes, retry_after_s, wait_s


def test_worked_example_of_the_wait() -> None:
    assert wait_s(60_000, 6_000, 1, 4, 4 * 5_000) == pytest.approx(1.2)
    assert wait_s(20_000, 6_000, 1, 4, 4 * 5_000) == pytest.approx(1.0)


def test_nobody_is_refused_on_a_guess() -> None:
    assert wait_s(10**9, 10**9, 1, 1, 0.0) == 0.0


def test_while_nobody_waits_a_lower_sample_means_nothing() -> None:
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


def test_what_passed_before_the_pool_was_ever_full_foretells_nothing() -> None:
    rate = Rate(0.0)
    rate.record_dispatched(10)
    rate.tick(1.0, 1, full=False)
    assert not rate.has_been_full
    rate.record_dispatched(5)
    rate.tick(2.0, 1, full=True)
    assert rate.has_been_full


def test_the_refused_are_asked_back_one_after_the_other() -> None:
    returns = ReturnTimes()
    assert [returns.reserve_place(request, 80, 1.0, 100.0, 5.0) for request in (1, 2, 3)] == [1.0, 2.0, 3.0]


def test_who_comes_back_in_time_has_a_place_and_nobody_else_has_it() -> None:
    returns = ReturnTimes()
    returns.reserve_place(1, 80, 1.0, 100.0, 5.0)
    assert not returns.claim_place(2, 6.5), "another request"
    assert not returns.claim_place(1, 5.5), "too early"
    assert returns.claim_place(1, 6.5)
    assert not returns.claim_place(1, 6.6), "once"


def test_who_comes_too_early_keeps_the_place_that_he_has() -> None:
    returns = ReturnTimes()
    returns.reserve_place(1, 80, 2.0, 100.0, 5.0)
    assert returns.reserve_place(1, 80, 2.0, 100.0, 6.0) == 1.0
    assert len(returns) == 1


def test_a_place_that_nobody_comes_for_is_forgotten() -> None:
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


def test_a_rate_of_ten_seconds_ago_foretells_nothing() -> None:
    rate = Rate(0.0)
    rate.record_dispatched(10)
    rate.tick(1.0, 1, full=True)
    rate.tick(11.0, 1, full=False)
    assert rate.has_been_full
    rate.tick(11.5, 1, full=False)
    assert not rate.has_been_full, "the engines may have been slow then"


def test_while_somebody_is_refused_the_rate_is_not_forgotten_though_nobody_waits() -> None:
    rate = Rate(0.0)
    rate.record_dispatched(10)
    rate.tick(1.0, 1, full=True)
    rate.mark_full(9.0)
    rate.tick(18.0, 1, full=False)
    assert rate.has_been_full


def test_who_is_sent_away_in_the_first_second_is_told_by_what_has_passed() -> None:
    rate = Rate(0.0)
    rate.record_dispatched(100)
    assert rate.rate_so_far(0.5, 2) == 50.0
    assert rate.rate_so_far(0.5, 0) == 0.0
    rate.tick(1.0, 2, full=True)
    assert rate.rate_so_far(1.5, 2) == 50.0


def test_who_came_in_its_time_and_found_no_room_goes_before_others_the_next_time() -> None:
    returns = ReturnTimes()
    for request in (1, 2, 3):
        returns.reserve_place(request, 800, 1.0, 100.0, 5.0)
    assert returns.claim_place(1, 6.5)
    assert returns.postpone_place(1, 0.5, 6.5) == 0.5
    assert not returns.claim_place(1, 6.9) and returns.claim_place(1, 7.1)


def test_places_that_nobody_came_for_are_queued_behind_by_nobody() -> None:
    times = ReturnTimes()
    for request in range(40):
        times.reserve_place(request, cost=100.0, wait_s=1.0, drain_per_s=20.0, now_s=0.0)
    assert times.reserve_place(99, cost=100.0, wait_s=1.0, drain_per_s=20.0, now_s=0.0) > 100.0
    for _ in range(20):
        times.has_no_places(1_000.0)
    assert times.reserve_place(100, cost=100.0, wait_s=1.0, drain_per_s=20.0, now_s=1_000.0) == 1.0


def test_who_is_put_back_is_never_told_more_than_the_most() -> None:
    times = ReturnTimes()
    assert times.postpone_place(1, wait_s=9_000.0, now_s=0.0) == MAX_RETRY_AFTER_S
    assert len(times) == 0
