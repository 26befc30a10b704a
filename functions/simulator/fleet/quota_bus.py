"""The bus's side of shared limits in virtual time: what `functions.fleet.quota_script` does on the server.

One bucket for each limit of each account, which grants fill and time empties; to a round at most half of what is left,
to a request all that it lacks or nothing. Places are held by gateways, and come back from one that is silent for 10 s.
Amounts are grains here as well. Neighbours: `tenant_limits` asks; `decisions.quota.lease` says for how much.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from functions.api.ids import TenantId
from functions.decisions.quota.account import QuotaAccount
from functions.decisions.quota.dimensions import CONCURRENCY, PERIODS_S, Costs
from functions.decisions.quota.lease import AccountLease, shared_burst
from functions.decisions.quota.token_bucket import TokenBucket

PLACES_TTL_US = 10_000_000
_DENIED_AT_MOST_US = 500_000  # as `functions.gateway.quota.lease_requests`
_NO_PLACE_US = 100_000

Wish = Mapping[int, int]  # by dimension: grains, or places under CONCURRENCY; below zero: given back


def wish_of_round(account: QuotaAccount, lease: AccountLease, now_us: int) -> Wish:
    """What is given back is gone from here at once."""
    idle, wish = lease.is_idle(now_us), {}
    for index, bucket in account.limited:
        wanted = lease.rate(index).want(bucket, idle)
        if wanted < 0:
            lease.rate(index).give_back(bucket, -wanted)
        wish[index] = wanted
    if account.limits.concurrent_requests is not None:
        wish[CONCURRENCY] = -lease.places if idle and not account.in_flight else lease.wants_places(account)
    return wish


def wish_of_missing(account: QuotaAccount, lease: AccountLease, held: Costs) -> Wish:
    """What a request that has taken its part lacks, and what its account owes: here nobody else asks meanwhile."""
    return lease.missing(account, held, account.in_flight) | lease.owed(account, held)


@dataclass(slots=True)
class _Shared:
    """One account, as all gateways share it."""

    buckets: dict[int, TokenBucket] = field(default_factory=dict)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)  # by gateway: how many, and until when


class QuotaBus:
    def __init__(self) -> None:
        self._accounts: dict[TenantId, _Shared] = {}

    def grant(
        self, gateway: str, tenant: TenantId, account: QuotaAccount, wish: Wish, now_us: int, *, all_or_none: bool
    ) -> bool:
        """Puts what is granted into the account's lease; whether all of it was."""
        shared = self._accounts.setdefault(tenant, _Shared())
        lease = account.lease
        if lease is None:
            return False
        if all_or_none and (waits := self._waits(gateway, shared, account, wish, now_us)):
            for index, wait_us in waits.items():
                lease.deny(index, min(wait_us, _DENIED_AT_MOST_US), now_us)
            return False
        for index, wanted in wish.items():
            if index == CONCURRENCY:
                places = self._places(gateway, shared, account, wanted, now_us)
                shared.places[gateway] = (places, now_us + PLACES_TTL_US)
                lease.places = account.slots = places
                continue
            bucket, own = self._bucket(shared, account, index, now_us), account.buckets[index]
            if bucket is None or own is None:
                continue
            amount = wanted
            if wanted > 0 and not all_or_none:
                amount = max(0, min(wanted, bucket.room // 2))
            bucket.add(amount)
            lease.rate(index).granted(own, max(0, amount), bucket.room)
        return True

    def outstanding(self, tenant: TenantId, index: int) -> int:
        """What has been granted and not emptied by time, in grains."""
        shared = self._accounts.get(tenant)
        bucket = shared.buckets.get(index) if shared is not None else None
        return bucket.level if bucket is not None else 0

    def forget_idle(self, now_us: int) -> None:
        """Accounts that are as good as new."""
        for tenant, shared in list(self._accounts.items()):
            if _is_idle(shared.buckets.values(), now_us) and not _held(shared, "", now_us):
                del self._accounts[tenant]

    def __len__(self) -> int:
        return len(self._accounts)

    # inside

    def _bucket(self, shared: _Shared, account: QuotaAccount, index: int, now_us: int) -> TokenBucket | None:
        own = account.buckets[index]
        if own is None:
            return None
        bucket = shared.buckets.get(index)
        if bucket is None:
            burst = shared_burst(index, own)
            bucket = shared.buckets[index] = TokenBucket(own.limit, burst, PERIODS_S[index], now_us)
        bucket.advance(now_us)
        return bucket

    def _waits(self, gateway: str, shared: _Shared, account: QuotaAccount, wish: Wish, now_us: int) -> dict[int, int]:
        """What of the wish cannot be granted now, and for how long."""
        waits = {}
        for index, wanted in wish.items():
            if index == CONCURRENCY:
                limit = account.limits.concurrent_requests or 0
                held = shared.places.get(gateway, (0, 0))[0]
                if _held(shared, gateway, now_us) + held + wanted > limit:
                    waits[index] = _NO_PLACE_US
            elif (bucket := self._bucket(shared, account, index, now_us)) is not None and not bucket.has_room(wanted):
                waits[index] = bucket.wait_us(wanted)
        return waits

    def _places(self, gateway: str, shared: _Shared, account: QuotaAccount, wanted: int, now_us: int) -> int:
        """How many the gateway has from now on."""
        held = account.lease.places if account.lease is not None else 0
        free = max(0, (account.limits.concurrent_requests or 0) - _held(shared, gateway, now_us) - held)
        return max(0, held + min(wanted, free))


def _held(shared: _Shared, but: str, now_us: int) -> int:
    """Places of other gateways."""
    return sum(places for name, (places, until_us) in shared.places.items() if name != but and until_us > now_us)


def _is_idle(buckets: Iterable[TokenBucket], now_us: int) -> bool:
    for bucket in buckets:
        bucket.advance(now_us)
        if bucket.level > 0:
            return False
    return True
