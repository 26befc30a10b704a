"""Token bucket of one limit: exact, within its bound in any window, with waits as long as predicted."""

from hypothesis import given, settings
from hypothesis import strategies as st

from functions.decisions.quota.token_bucket import US_PER_S, TokenBucket, burst_of

MINUTE_S = 60
GRAIN = MINUTE_S * US_PER_S


def of_minute(limit: int, burst: int | None = None) -> TokenBucket:
    return TokenBucket(limit, burst_of(limit) if burst is None else burst, MINUTE_S, 0)


def try_spend(bucket: TokenBucket, tokens: int, now_us: int) -> int:
    """Spend the tokens if they are available; return the microseconds to wait, or 0 if they were spent."""
    bucket.advance(now_us)
    wait_us = bucket.wait_us(tokens * GRAIN)
    if wait_us == 0:
        bucket.add(tokens * GRAIN)
    return wait_us


def count_spent(bucket: TokenBucket, now_us: int, tries: int = 1000) -> int:
    return sum(1 for _ in range(tries) if try_spend(bucket, 1, now_us) == 0)


def test_worked_example_from_the_prologue() -> None:
    bucket = of_minute(60_000)
    assert bucket.burst == 1200
    assert try_spend(bucket, 1200, 0) == 0
    assert try_spend(bucket, 600, 0) == 600_000
    assert try_spend(bucket, 3000, 0) == 1_200_000
    assert try_spend(bucket, 3000, 1_200_000) == 0
    assert bucket.headroom == -1800 * GRAIN
    assert try_spend(bucket, 100, 1_200_000) == 1_900_000
    assert try_spend(bucket, 100, 3_100_000) == 0


def test_a_burst_is_two_percent_and_the_largest_request_and_never_more_than_the_limit() -> None:
    assert burst_of(2_000_000, 131_072) == 131_072
    assert burst_of(500_000, 8192) == 10_000
    assert burst_of(100, 8192) == 100
    assert burst_of(3) == 1 and burst_of(0) == 0


def test_a_larger_limit_makes_room_at_once_and_keeps_what_was_used() -> None:
    bucket = of_minute(10, 10)
    assert count_spent(bucket, 0) == 10
    bucket.change_limit(25, 25)
    assert count_spent(bucket, 0) == 15


def test_smaller_limit_leaves_the_bucket_full_and_not_overfull() -> None:
    bucket = of_minute(1000, 1000)
    count_spent(bucket, 0)
    bucket.change_limit(6, 6)
    assert try_spend(bucket, 1, 0) == 10 * US_PER_S, "one request's worth of 6 a minute, not 995 of them"


def test_limit_of_zero_admits_nothing() -> None:
    bucket = of_minute(0)
    assert count_spent(bucket, 0) == count_spent(bucket, 10**12) == 0
    bucket.add(-GRAIN)
    assert count_spent(bucket, 10**12) == 0 and bucket.full_again_us() == 0
    assert try_spend(bucket, 1, 10**12) == MINUTE_S * US_PER_S


def test_time_that_runs_backwards_empties_nothing() -> None:
    bucket = of_minute(5, 5)
    assert count_spent(bucket, 1000 * US_PER_S) == 5
    assert count_spent(bucket, 0) == count_spent(bucket, 1000 * US_PER_S) == 0


def test_refund_beyond_the_spent_amount_is_no_credit() -> None:
    bucket = of_minute(5, 5)
    bucket.add(-100 * GRAIN)
    assert count_spent(bucket, 0) == 5


def test_leased_units_do_not_change_with_time() -> None:
    bucket = of_minute(60, 60)
    bucket.lease(0)
    bucket.add(-7 * GRAIN)
    bucket.advance(10**12)
    assert bucket.headroom == 7 * GRAIN and bucket.has_headroom(7 * GRAIN) and not bucket.has_headroom(8 * GRAIN)


def test_lease_keeps_units_and_debt_when_the_limit_changes() -> None:
    for level in (-7 * GRAIN, 900 * GRAIN):
        bucket = of_minute(60_000)
        bucket.lease(level)
        bucket.change_limit(600, 12)
        assert (bucket.level, bucket.leased, bucket.limit, bucket.burst) == (level, True, 600, 12)


costs = st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(1, 400)), max_size=80)


@settings(deadline=None)
@given(st.integers(1, 20_000), st.integers(1, 500), costs)
def test_no_window_exceeds_its_bound(limit: int, burst: int, steps: list[tuple[int, int]]) -> None:
    bucket = of_minute(limit, burst)
    now_us, spent = 0, list[tuple[int, int]]()
    for pause_us, tokens in steps:
        now_us += pause_us
        if try_spend(bucket, tokens, now_us) == 0:
            spent.append((now_us, tokens))
    for first, (since_us, _) in enumerate(spent):
        total = largest = 0
        for at_us, tokens in spent[first:]:
            total, largest = total + tokens, max(largest, tokens)
            assert total * GRAIN <= limit * (at_us - since_us) + max(burst, largest) * GRAIN


@settings(deadline=None)
@given(st.integers(50, 20_000), costs)
def test_bucket_matches_an_exact_level(limit: int, steps: list[tuple[int, int]]) -> None:
    """The bucket makes the same decisions as an oracle in whole units: no rounding."""
    bucket, level, now_us = of_minute(limit), 0, 0
    capacity = burst_of(limit) * GRAIN
    for pause_us, tokens in steps:
        now_us += pause_us
        level = max(0, level - pause_us * limit)
        may = level + min(tokens * GRAIN, capacity) <= capacity
        assert (try_spend(bucket, tokens, now_us) == 0) is may
        level += tokens * GRAIN if may else 0
        assert bucket.level == level


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30 * US_PER_S), st.integers(0, 300), st.integers(1, 50)), max_size=60))
def test_predicted_wait_is_exact_after_any_limit_changes(steps: list[tuple[int, int, int]]) -> None:
    bucket, now_us = of_minute(1), 0
    for pause_us, limit, tokens in steps:
        now_us += pause_us
        bucket.advance(now_us)
        if limit != bucket.limit:
            bucket.change_limit(limit, burst_of(limit))
        wait_us = try_spend(bucket, tokens, now_us)
        if wait_us and limit:
            level = bucket.level
            bucket.advance(now_us + wait_us - 1)
            assert not bucket.has_headroom(tokens * GRAIN)
            bucket.advance(now_us + wait_us)
            assert bucket.has_headroom(tokens * GRAIN)
            bucket.level, bucket.updated_us = level, now_us
