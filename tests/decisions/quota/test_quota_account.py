"""Quota account: all limits or none, concurrent requests always counted, and new limits effective at once."""

import pytest

from functions.api.snapshot import QuotaLimitsPart
from functions.decisions.quota.account import QuotaAccount
from functions.decisions.quota.dimensions import GPU, INPUT, KV, OUTPUT, REQUESTS, UNITS, Costs
from functions.decisions.quota.token_bucket import US_PER_S

REQUEST: Costs = (UNITS[REQUESTS], 0, 0, 0, 0)


def account_of(**limits: int) -> QuotaAccount:
    made = QuotaAccount()
    made.set_limits(QuotaLimitsPart(**limits), 0)
    return made


def tokens(prompt: int, output: int) -> Costs:
    return (0, prompt * UNITS[INPUT], output * UNITS[OUTPUT], 0, 0)


def test_refusal_in_one_dimension_costs_nothing_in_another() -> None:
    account = account_of(input_tokens_per_minute=6000, output_tokens_per_minute=600, max_output_tokens=100)
    over = account.find_shortage(tokens(100, 101), 0)
    assert over is None, "a full bucket lets one request through that is larger than a burst"
    account.spend(tokens(100, 100), 0)
    over = account.find_shortage(tokens(10, 50), 0)
    assert over is not None and (over.dimension, over.limit, over.retry_after_s) == ("output_tokens_per_minute", 600, 5)
    assert account.find_shortage(tokens(20, 0), 0) is None, "20 of the burst of 120 input tokens are left"
    assert account.find_shortage(tokens(21, 0), 0) is not None


def test_longest_wait_is_reported() -> None:
    account = account_of(input_tokens_per_minute=6000, output_tokens_per_minute=600)
    account.spend(tokens(120, 12), 0)
    over = account.find_shortage(tokens(1, 12), 0)
    assert over is not None and over.dimension == "output_tokens_per_minute" and over.retry_after_s == 1.2


def test_requests_may_burst_a_whole_minute_and_tokens_may_not() -> None:
    account = account_of(requests_per_minute=60, input_tokens_per_minute=6000)
    for _ in range(60):
        assert account.find_shortage(REQUEST, 0) is None
        account.spend(REQUEST, 0)
    over = account.find_shortage(REQUEST, 0)
    assert over is not None and over.retry_after_s == 1.0
    account.spend(tokens(120, 0), 0)
    over = account.find_shortage(tokens(100, 0), 0)
    assert over is not None and over.retry_after_s == 1.0


def test_a_policy_may_allow_longer_bursts() -> None:
    account = account_of(input_tokens_per_minute=6000, token_burst_seconds=30)
    account.spend(tokens(2999, 0), 0)
    assert account.find_shortage(tokens(1, 0), 0) is None and account.find_shortage(tokens(2, 0), 0) is not None


def test_concurrency_limit_counts_requests_from_before_the_limit() -> None:
    account = account_of()
    account.in_flight = 3
    assert account.denies_entry(0) is None
    account.set_limits(QuotaLimitsPart(concurrent_requests=3), 0)
    denied = account.denies_entry(0)
    assert denied is not None and (denied.dimension, denied.limit) == ("concurrent_requests", 3)
    account.set_limits(QuotaLimitsPart(concurrent_requests=4), 0)
    assert account.denies_entry(0) is None
    for _ in range(3):
        account.end_request()
    with pytest.raises(ValueError, match="more requests ended"):
        account.end_request()


def test_the_same_limits_again_change_nothing() -> None:
    account = account_of(requests_per_minute=1)
    account.spend(REQUEST, 0)
    account.set_limits(QuotaLimitsPart(requests_per_minute=1), 0)
    assert account.find_shortage(REQUEST, 0) is not None


def test_limit_removed_and_added_again_starts_fresh() -> None:
    account = account_of(requests_per_minute=1)
    account.spend(REQUEST, 0)
    account.set_limits(QuotaLimitsPart(), 0)
    assert account.find_shortage(REQUEST, 0) is None
    account.set_limits(QuotaLimitsPart(requests_per_minute=1), 0)
    assert account.find_shortage(REQUEST, 0) is None


def test_account_is_idle_only_without_requests_and_used_buckets() -> None:
    account = account_of(requests_per_minute=60, gpu_seconds_per_hour=3600)
    account.spend((UNITS[REQUESTS], 0, 0, 0, 10 * UNITS[4]), 0)
    account.in_flight = 1
    assert not account.is_idle(3600 * US_PER_S)
    account.end_request()
    fresh = account_of(requests_per_minute=60, gpu_seconds_per_hour=3600)
    fresh.spend((0, 0, 0, 0, 10 * UNITS[4]), 0)
    assert not fresh.is_idle(9 * US_PER_S) and fresh.is_idle(10 * US_PER_S)


@pytest.mark.parametrize(
    ("limit", "index", "period_s"), [("gpu_seconds_per_hour", GPU, 3600), ("kv_token_seconds_per_minute", KV, 60)]
)
def test_limits_settled_at_the_end_refuse_only_on_debt(limit: str, index: int, period_s: int) -> None:
    account = account_of(**{limit: 600})
    bucket = account.buckets[index]
    assert bucket is not None
    at_once = (0, 0, 0, *((0, bucket.capacity) if index == GPU else (bucket.capacity, 0)))
    account.spend(at_once, 0)
    assert account.find_shortage(tokens(1, 1), 0) is None, "what runs side by side comes at once"
    account.spend(tuple(cost // 2 for cost in at_once), 0)  # type: ignore[arg-type]
    over = account.find_shortage(tokens(1, 1), 0)
    assert over is not None and over.dimension == limit
    assert over.retry_after_s == pytest.approx(bucket.burst / 2 * period_s / 600)
    assert account.find_shortage(tokens(1, 1), int(over.retry_after_s * US_PER_S) + 1) is None, "as it was told"


def test_lease_below_one_wire_unit_is_idle() -> None:
    account = account_of(kv_token_seconds_per_minute=1000)
    bucket = account.buckets[KV]
    assert bucket is not None
    bucket.lease(-17)
    assert account.is_idle(0)
    bucket.lease(-UNITS[KV])
    assert not account.is_idle(0)


def test_kv_seconds_per_token_are_learned() -> None:
    account = account_of(kv_token_seconds_per_minute=1000)
    for _ in range(40):
        account.record_usage(100, 250.0)
    assert account.kv_s_per_token == pytest.approx(2.5, rel=0.01)
    account.record_usage(0, 250.0)
    assert account.kv_s_per_token == pytest.approx(2.5, rel=0.01), "a request of no tokens teaches nothing"
