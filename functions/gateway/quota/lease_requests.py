"""Lease requests of this gateway to the bus, and how their answers are applied.

    a round     request_of_round -> the bus -> take_round      returned units are deducted here before they are sent
    a request   missing -> the bus -> take_asked               or, if the bus does not answer, judged_here

Amounts here are quota units, on the wire millionths. `leases` sends the requests, `functions.decisions.quota.lease`
computes amounts, and `functions.fleet.quota_leases` defines the messages.
"""

from collections.abc import Iterable, Iterator, Mapping

from functions.decisions.quota.account import QuotaAccount
from functions.decisions.quota.dimensions import CONCURRENCY, DIMENSIONS, FREES_UP_S, PERIODS_S, OverLimit
from functions.decisions.quota.lease import AccountLease, shared_burst
from functions.decisions.quota.token_bucket import US_PER_S, TokenBucket
from functions.fleet.quota_leases import MICRO, NO_LIMIT, GrantedGroup, Group, LeaseRequest, RateRequest
from functions.gateway.quota.accounts import RequestQuota

_DENIED_AT_MOST_US = US_PER_S // 2  # upper limit, so that a large request's wait does not block small ones
_SEEN_EACH_US = US_PER_S  # the bus reclaims the slots of a gateway that is silent for ten times as long
_BACK_S = 1.0  # retry time if none is known


def request_of_round(key: str, account: QuotaAccount, now_us: int) -> LeaseRequest:
    """Return an account's lease request for a round. Units that it gives back are deducted from the account now."""
    lease = _lease_of(account)
    idle = lease.is_idle(now_us)
    rates = []
    for index, bucket in account.limited:
        period_s = PERIODS_S[index]
        # Rounded up, so that debt is paid completely
        wanted_micro = -(-lease.rate(index).to_request(bucket, idle) // period_s)
        if wanted_micro < 0:
            lease.rate(index).give_back(bucket, -wanted_micro * period_s)
        rates.append(_rate(account, index, bucket, wanted_micro))
    limit = account.limits.concurrent_requests
    if limit is None:
        return LeaseRequest(key, NO_LIMIT, 0, 0, tuple(rates))
    places = -lease.places if idle and not account.in_flight else lease.places_to_request(account)
    if places < 0:
        account.slots = max(0, lease.places + places)
    return LeaseRequest(key, limit, lease.places, places, tuple(rates))


def is_asked(account: QuotaAccount, request: LeaseRequest, now_us: int) -> bool:
    """Return True, and note the time, if a round must include this request.

    An account that wants nothing is included only once in _SEEN_EACH_US.
    """
    lease = _lease_of(account)
    is_needed = request.places_wanted or lease.is_idle(now_us) or any(rate.wanted_micro for rate in request.rates)
    if not is_needed and now_us - lease.asked_us < _SEEN_EACH_US:
        return False
    lease.asked_us = now_us
    return True


def take_round(account: QuotaAccount, request: LeaseRequest, granted: GrantedGroup, now_us: int) -> None:
    lease, grant = _lease_of(account), granted.grants[0]
    _take_places(account, request, grant.places)
    for rate, amount, left in zip(request.rates, grant.granted_micro, grant.left_micro, strict=True):
        bucket = account.buckets[rate.dimension]
        if bucket is not None:  # a snapshot may have removed the limit meanwhile
            units = max(0, amount) * rate.period_s
            lease.rate(rate.dimension).record_grant(bucket, units, left * rate.period_s, now_us)
            lease.rate(rate.dimension).round_ended(now_us)


def _take_places(account: QuotaAccount, request: LeaseRequest, places: int) -> None:
    if request.places_limit != NO_LIMIT and account.slots is not None:
        _lease_of(account).places = account.slots = places


def places_of(entry: RequestQuota) -> tuple[int, ...]:
    """Return the number of requests in progress in each account of the entry, its own included."""
    return tuple(account.in_flight for account in entry.accounts)


def missing(entry: RequestQuota, taken: tuple[int, ...], active: Mapping[str, QuotaAccount]) -> Iterator[LeaseRequest]:
    """Yield a lease request for each account that still lacks something. `taken` is what `places_of` returned."""
    for place, (key, account) in zip(taken, entry.keyed_accounts(), strict=True):
        if account.lease is None or active.get(key) is not account:
            continue
        missing = account.lease.units_to_request(account, entry.reservation.held, place)
        places = missing.pop(CONCURRENCY, 0)
        rates = _rates(account, missing)
        limit = account.limits.concurrent_requests
        if places or rates:
            yield LeaseRequest(
                key, limit if places and limit is not None else NO_LIMIT, account.lease.places, places, rates
            )


def owed(entries: Iterable[RequestQuota], active: Mapping[str, QuotaAccount]) -> dict[str, Group]:
    """Return lease requests for what the accounts of these entries owe, by account; without those that owe nothing."""
    found: dict[str, Group] = {}
    for entry in entries:
        for key, account in entry.keyed_accounts():
            if key in found or account.lease is None or active.get(key) is not account:
                continue
            debts = account.lease.debts(account, entry.reservation.held)
            if debts:
                found[key] = Group(
                    True, (LeaseRequest(key, NO_LIMIT, account.lease.places, 0, _rates(account, debts)),)
                )
    return found


def _rates(account: QuotaAccount, wanted: Mapping[int, int]) -> tuple[RateRequest, ...]:
    """Return rate requests for the wanted units by dimension, without dimensions that have no limit."""
    rates = []
    for index, units in wanted.items():
        bucket = account.buckets[index]
        if bucket is not None:
            micro = -(-units // PERIODS_S[index])
            rates.append(_rate(account, index, bucket, micro))
    return tuple(rates)


def _rate(account: QuotaAccount, index: int, bucket: TokenBucket, wanted_micro: int) -> RateRequest:
    burst_micro, period_s = shared_burst(index, bucket) * MICRO, PERIODS_S[index]
    request_micro = max(1, _lease_of(account).rate(index).request // period_s)
    return RateRequest(index, bucket.limit, burst_micro, period_s, wanted_micro, request_micro)


def take_asked(
    active: Mapping[str, QuotaAccount], group: Group, granted: GrantedGroup, now_us: int
) -> OverLimit | None:
    """Add the granted units to the accounts, or remember the denial there. Return the exceeded limit, or None."""
    over: OverLimit | None = None
    for request, grant in zip(group.requests, granted.grants, strict=True):
        account = active.get(request.account)
        if account is None or account.lease is None:
            continue  # the bus was lost and found again meanwhile
        lease = account.lease
        if granted.ok:
            # Answers of calls may cross: a smaller one that arrives last reduces nothing (the next round sets the
            # value).
            _take_places(account, request, max(account.slots or 0, grant.places))
            for rate, amount, left in zip(request.rates, grant.granted_micro, grant.left_micro, strict=True):
                bucket = account.buckets[rate.dimension]
                if bucket is not None:
                    lease.rate(rate.dimension).record_grant(
                        bucket, amount * rate.period_s, left * rate.period_s, now_us
                    )
            continue
        denied = min(granted.wait_us, _DENIED_AT_MOST_US)
        for rate, left in zip(request.rates, grant.left_micro, strict=True):
            if left < min(rate.wanted_micro, rate.burst_micro):
                lease.record_denial(rate.dimension, denied, now_us)
                over = over or OverLimit(DIMENSIONS[rate.dimension], rate.limit, granted.wait_us / US_PER_S)
        if over is None and request.places_wanted:
            lease.record_denial(CONCURRENCY, denied, now_us)
            over = OverLimit("concurrent_requests", request.places_limit, FREES_UP_S)
    return over


def judged_here(entry: RequestQuota, gateways: int) -> OverLimit | None:
    """Return the limit for which a reserved request may not run on credit while the bus is silent; None if it may."""
    for _, account in entry.keyed_accounts():
        for index, bucket in account.limited:
            owed = -bucket.headroom
            if owed > _lease_of(account).rate(index).credit(index, bucket, gateways):
                return OverLimit(DIMENSIONS[index], bucket.limit, _BACK_S)
        limit = account.limits.concurrent_requests
        if limit is not None and account.in_flight > max(1, limit // gateways):
            return OverLimit("concurrent_requests", limit, FREES_UP_S)
    return None


def _lease_of(account: QuotaAccount) -> AccountLease:
    if account.lease is None:
        raise ValueError("the account was never fitted to a lease")
    return account.lease
