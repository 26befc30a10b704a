"""A tenant's account: what is under way is what entered and has not left, whatever the limits were meanwhile."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api.snapshot import QuotaLimits
from functions.decisions.tenant_use import OverLimit, TenantUse

UNLIMITED = QuotaLimits()


def test_as_many_at_a_time_as_the_limit_says() -> None:
    use, two = TenantUse(), QuotaLimits(concurrent_requests=2)
    assert use.enter(two, 0.0) is None and use.enter(two, 0.0) is None
    assert use.enter(two, 0.0) == OverLimit("concurrent_requests", 2, 1.0)
    use.leave()
    assert use.enter(two, 0.0) is None


def test_a_new_limit_holds_for_the_next_request_and_counts_what_was_under_way() -> None:
    use = TenantUse()
    for _ in range(3):
        assert use.enter(UNLIMITED, 0.0) is None
    assert isinstance(use.enter(QuotaLimits(concurrent_requests=3), 0.0), OverLimit)
    assert use.enter(QuotaLimits(concurrent_requests=4), 0.0) is None
    for _ in range(2):
        use.leave()
    assert isinstance(use.enter(QuotaLimits(concurrent_requests=1), 0.0), OverLimit), "two are still under way"


def test_what_was_refused_for_one_reason_costs_nothing_of_the_other() -> None:
    use, limits = TenantUse(), QuotaLimits(concurrent_requests=1, requests_per_minute=3)
    use.enter(limits, 0.0)
    for _ in range(10):
        over = use.enter(limits, 0.0)
        assert over is not None and over.dimension == "concurrent_requests"
    assert use.rate.remaining(3) == 2
    use.leave()
    for _ in range(2):
        assert use.enter(limits, 0.0) is None
        use.leave()
    over = use.enter(limits, 0.0)
    assert over == OverLimit("requests_per_minute", 3, pytest.approx(20.0))  # type: ignore[arg-type]
    assert use.in_flight == 0


def test_more_ends_than_beginnings_are_a_bug_that_is_heard_of() -> None:
    with pytest.raises(ValueError, match="more requests ended"):
        TenantUse().leave()


def test_idle_only_when_nothing_is_under_way_and_the_bucket_is_empty() -> None:
    use, limits = TenantUse(), QuotaLimits(requests_per_minute=5)
    use.enter(limits, 100.0)
    assert not use.is_idle(1e6)
    use.leave()
    assert not use.is_idle(100.0) and use.is_idle(160.0)


limit = st.none() | st.integers(0, 5)
steps = st.lists(
    st.one_of(st.tuples(st.just("enter"), limit, limit), st.tuples(st.just("leave"), limit, limit)), max_size=200
)


@settings(deadline=None)
@given(steps)
def test_the_count_is_what_entered_and_did_not_leave_under_limits_that_change(
    story: list[tuple[str, int | None, int | None]],
) -> None:
    use, under_way = TenantUse(), 0
    for number, (act, concurrent, per_minute) in enumerate(story):
        if act == "leave":
            if under_way:
                use.leave()
                under_way -= 1
        elif use.enter(QuotaLimits(concurrent_requests=concurrent, requests_per_minute=per_minute), number * 0.1):
            assert concurrent is not None or per_minute is not None, "nobody is refused without a limit"
        else:
            assert concurrent is None or under_way < concurrent
            under_way += 1
        assert use.in_flight == under_way >= 0
