"""Leases and outages: how much is requested and returned, and how limits hold without the bus."""

import pytest

from functions.api.snapshot import QuotaLimitsPart
from functions.decisions.quota.account import QuotaAccount, apply_regime
from functions.decisions.quota.dimensions import GPU, OUTPUT, REQUESTS, UNITS, Costs
from functions.decisions.quota.lease import CREDIT_DIVISOR, AccountLease, RateLease, shared_burst
from functions.decisions.quota.outage import Granted, Regime, rate_of, regime_of
from functions.decisions.quota.token_bucket import US_PER_S, TokenBucket

GRAIN = UNITS[OUTPUT]
LEASED = Regime("leased", 4)


def leased_bucket(held: int) -> TokenBucket:
    bucket = TokenBucket(60_000, 1200, 60, 0)
    bucket.lease(-held * GRAIN)
    return bucket


def leased_account(**limits: int) -> QuotaAccount:
    account = QuotaAccount()
    account.set_limits(QuotaLimitsPart(**limits), 0)
    apply_regime(account, LEASED, 0)
    return account


def lease_of(account: QuotaAccount) -> AccountLease:
    assert account.lease is not None
    return account.lease


def output(tokens: int) -> Costs:
    return (0, 0, tokens * GRAIN, 0, 0)


def test_worked_example_from_the_prologue() -> None:
    lease = RateLease()
    lease.asked = 250 * GRAIN
    assert lease.to_request(leased_bucket(25), idle=False) == 200 * GRAIN
    lease.demand, lease.asked = 250.0 * GRAIN, 250 * GRAIN
    assert lease.to_request(leased_bucket(0), idle=False) == 300 * GRAIN


def test_unused_lease_is_returned() -> None:
    lease = RateLease()
    lease.demand, lease.asked = 10.0 * GRAIN, 10 * GRAIN
    assert lease.to_request(leased_bucket(100), idle=False) == -70 * GRAIN, (
        "an ask of 30, and more than two of them in hand"
    )
    assert lease.to_request(leased_bucket(50), idle=False) in range(-30 * GRAIN, 0)
    assert lease.to_request(leased_bucket(50), idle=True) == -50 * GRAIN


def test_debt_is_requested_until_paid() -> None:
    assert RateLease().to_request(leased_bucket(-40), idle=True) == 40 * GRAIN


def test_lease_grows_for_a_refused_large_request() -> None:
    lease = RateLease()
    lease.largest = 900 * GRAIN
    assert lease.to_request(leased_bucket(0), idle=False) == 900 * GRAIN


def test_shortage_is_requested_from_the_bus_unless_just_denied() -> None:
    account = leased_account(output_tokens_per_minute=60_000)
    lease = lease_of(account)
    over = lease.find_shortage(account, output(10), 0)
    assert over is not None and over.retry_after_s == 0.0
    account.spend(output(10), 0)
    assert lease.units_to_request(account, output(10), 1) == {OUTPUT: 10 * GRAIN}
    lease.record_denial(OUTPUT, US_PER_S, 0)
    over = lease.find_shortage(account, output(10), US_PER_S // 2)
    assert over is not None and over.retry_after_s == 0.5
    account.spend(output(-30), 0)
    assert lease.find_shortage(account, output(20), US_PER_S // 2) is None, "it has come meanwhile"


def test_concurrent_requests_each_request_places_up_to_their_own() -> None:
    account = leased_account(concurrent_requests=8)
    lease = lease_of(account)
    account.in_flight = 3
    assert [lease.units_to_request(account, output(1), place) for place in (1, 2, 3)] == [{5: 1}, {5: 2}, {5: 3}]
    account.in_flight = 1  # the other requests have ended meanwhile
    assert lease.units_to_request(account, output(1), 3) == {5: 1}


def test_places_are_requested_one_ahead_and_returned() -> None:
    account = leased_account(concurrent_requests=8)
    lease = lease_of(account)
    account.in_flight = 3
    assert lease.find_shortage(account, output(1), 0) is not None and lease.units_to_request(account, output(1), 3) == {
        5: 3
    }
    assert lease.places_to_request(account) == 4
    lease.places = account.slots = 4
    account.in_flight = 0
    assert lease.places_to_request(account) == 0, "three were taken at once a moment ago"
    assert lease.places_to_request(account) == -3


def test_change_from_lease_to_share_keeps_units_and_debt() -> None:
    for held in (100, -50):
        account = leased_account(output_tokens_per_minute=60_000)
        bucket = account.buckets[OUTPUT]
        assert bucket is not None
        lease_of(account).rate(OUTPUT).record_grant(bucket, held * GRAIN, 0, 0)
        apply_regime(account, Regime("share", 4), 0)
        assert bucket.headroom == (held + 75) * GRAIN, "and a fourth of what the bus keeps for credit"
        bucket.advance(60 * US_PER_S)
        assert bucket.headroom == 300 * GRAIN, "a fourth of the burst"


def test_estimated_bus_units_recover_with_time() -> None:
    account = leased_account(output_tokens_per_minute=60_000)
    bucket = account.buckets[OUTPUT]
    assert bucket is not None
    rate = lease_of(account).rate(OUTPUT)
    rate.record_grant(bucket, 0, 200 * GRAIN, US_PER_S // 2)
    assert [rate.estimated_bus_units(bucket, at * US_PER_S // 2) // GRAIN for at in (0, 1, 2, 9)] == [
        200,
        200,
        700,
        1200,
    ]


def test_new_lease_owes_only_what_was_spent_meanwhile() -> None:
    """An account without grants was once charged a whole burst when its gateway was alone for a moment or the bus was
    new. All its requests were then refused for up to a minute.
    """
    for meanwhile in (Regime("share", 1), Regime("last_rate", 4)):
        account = leased_account(requests_per_minute=600)
        bucket = account.buckets[REQUESTS]
        assert bucket is not None
        apply_regime(account, meanwhile, 0)
        account.spend((60 * US_PER_S, 0, 0, 0, 0), 0)
        apply_regime(account, LEASED, 1000, bus_knows=False)
        assert 0 < bucket.level <= 60 * US_PER_S, "what was spent meanwhile, and no more"


def test_debt_of_limits_settled_at_the_end_is_requested_ahead() -> None:
    account = leased_account(gpu_seconds_per_hour=3600)
    lease = lease_of(account)
    assert lease.find_shortage(account, output(10), 0) is None
    account.spend((0, 0, 0, 0, 5 * UNITS[GPU]), 0)
    over = lease.find_shortage(account, output(10), 0)
    assert over is not None and (over.dimension, over.retry_after_s) == ("gpu_seconds_per_hour", 0.0)
    assert lease.debts(account, output(10)) == {GPU: 5 * UNITS[GPU]} and not lease.units_to_request(
        account, output(10), 1
    )
    account.record_usage(10, 1.0, 5 * UNITS[GPU])
    bucket = account.buckets[GPU]
    assert bucket is not None and lease.rate(GPU).to_request(bucket, idle=False) > 5 * UNITS[GPU], (
        "and ahead of the next"
    )


def test_credit_and_shared_burst_add_up_to_one_burst() -> None:
    bucket = TokenBucket(60_000, 1200, 60, 0)
    assert shared_burst(OUTPUT, bucket) + bucket.burst // CREDIT_DIVISOR == bucket.burst
    assert shared_burst(REQUESTS, bucket) == bucket.burst, "a whole minute's worth of requests may come at once"
    assert shared_burst(OUTPUT, TokenBucket(1, 1, 60, 0)) == 1


def test_changed_limit_keeps_units_and_debt_of_a_lease() -> None:
    for level in (500 * GRAIN, -500 * GRAIN):
        account = leased_account(output_tokens_per_minute=60_000)
        account.buckets[OUTPUT].lease(level)  # type: ignore[union-attr]
        account.set_limits(QuotaLimitsPart(output_tokens_per_minute=6_000, requests_per_minute=5), 0)
        apply_regime(account, LEASED, 0)
        bucket, requests = account.buckets[OUTPUT], account.buckets[REQUESTS]
        assert bucket is not None and requests is not None
        assert (bucket.limit, bucket.level, requests.level) == (6_000, level, 0)


def test_lease_starts_with_debt_only() -> None:
    account = QuotaAccount()
    account.set_limits(QuotaLimitsPart(output_tokens_per_minute=60_000), 0)
    bucket = account.buckets[OUTPUT]
    assert bucket is not None
    apply_regime(account, LEASED, 0)
    assert bucket.headroom == 0
    apply_regime(account, Regime("share", 1), 0)
    account.spend(output(2000), 0)
    apply_regime(account, LEASED, 0)
    assert bucket.headroom < 0


def test_a_share_of_places_is_never_more_than_the_limit() -> None:
    account = QuotaAccount()
    account.set_limits(QuotaLimitsPart(concurrent_requests=0), 0)
    apply_regime(account, Regime("share", 4), 0)
    assert account.slots == 0
    account.set_limits(QuotaLimitsPart(concurrent_requests=2), 0)
    apply_regime(account, Regime("share", 4), 0)
    assert account.slots == 1


# without the bus


def test_worked_example_of_outages_from_the_prologue() -> None:
    steps = [regime_of(lost_for_s, 4).step for lost_for_s in (None, 0.0, 29.9, 30.0, 599.0, 600.0)]
    assert steps == ["leased", "last_rate", "last_rate", "share", "share", "urgent_only"]
    granted = Granted(400.0 * GRAIN, is_scarce=True)
    for step, tokens_per_s in (("last_rate", 400), ("share", 250), ("urgent_only", 250)):
        rate, divisor = rate_of(step, 60_000, granted, 4)  # type: ignore[arg-type]
        assert rate / divisor == pytest.approx(tokens_per_s * GRAIN / US_PER_S)


def test_gateway_without_recent_grants_uses_an_equal_share() -> None:
    assert rate_of("last_rate", 60_000, Granted(0.0, is_scarce=True), 4) == (60_000, 4)


def test_plentiful_units_give_at_least_an_equal_share() -> None:
    wanted_little = Granted(10.0 * GRAIN, is_scarce=False)
    assert rate_of("last_rate", 60_000, wanted_little, 4) == (60_000, 4)
    wanted_more = Granted(400.0 * GRAIN, is_scarce=False)
    assert rate_of("last_rate", 60_000, wanted_more, 4) == (400 * GRAIN, 1_000_000)
    was_given_little = Granted(10.0 * GRAIN, is_scarce=True)
    assert rate_of("last_rate", 60_000, was_given_little, 4) == (10 * GRAIN, 1_000_000)


def test_a_burst_before_the_loss_is_not_a_rate() -> None:
    """A bucket's whole burst was granted in a second; no gateway may continue at sixty times the limit."""
    rate, per_us = rate_of("last_rate", 60_000, Granted(60_000.0 * GRAIN, is_scarce=True), 4)
    assert rate / per_us == pytest.approx(1000 * GRAIN / US_PER_S)


def test_one_gateway_alone_keeps_the_whole_limit() -> None:
    assert regime_of(5.0, 1) == regime_of(1e6, 1) == Regime("share", 1)
