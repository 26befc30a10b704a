"""Quota accounts of tenants, and of keys with their own limits, at this gateway.

    enter -> reserve -> progress ... -> settle -> leave       `leave` settles if `settle` was not called

`functions.decisions.quota.account` and `reservation` decide. This module stores the accounts, which outlive
snapshots, and raises the 429 that `refusals` formulates. A single gateway, or one without a bus, enforces limits
exactly. Several gateways share them by leases (`leases`). Then `reserve` may return False: the missing part must be
requested, which takes milliseconds (`TenantQuotas.request_missing`).

The number of accounts is limited by the callers: only tenants and keys of a snapshot have one. The sweep drops
accounts that would decide nothing any more, a few at a time, and so also tenants that are gone from the snapshot.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from functions.api.ids import TenantId
from functions.api.snapshot import KeyEntry, QuotaEntry, QuotaLimitsPart, ServiceClass
from functions.decisions.quota.account import UNLIMITED, QuotaAccount
from functions.decisions.quota.dimensions import REQUESTS, UNITS, Costs, OverLimit
from functions.decisions.quota.outage import Regime
from functions.decisions.quota.reservation import Reservation
from functions.decisions.quota.token_bucket import US_PER_S
from functions.decisions.request.features import RequestFeatures
from functions.gateway import errors
from functions.gateway.errors import RequestRejected
from functions.gateway.http.sink import MoreHeaders
from functions.gateway.quota import refusals
from functions.gateway.quota.metrics import Settled
from functions.gateway.request.answers import Usage

_ONE_REQUEST: Costs = (UNITS[REQUESTS], 0, 0, 0, 0)
_NO_REQUEST: Costs = (-UNITS[REQUESTS], 0, 0, 0, 0)
_LOOKED_AT_PER_SWEEP = 256  # drops 50,000 idle accounts in less than a minute, at 20 us a sweep
_GOLDEN_RATIO = 0.6180339887498949  # its multiples modulo 1 spread evenly for any number of them
ALONE = Regime("share", 1)
Charged = tuple[int, int, int]  # tokens of an answer: prompt, cached part of the prompt, completion
_BATCH_BACK_S = 60
_LIMITS_UNKNOWN = (
    "Remaining quota is unknown: gateways cannot reach the bus. Only urgent requests are admitted; send batch "
    "requests later."
)


class Leasing(Protocol):
    """Leases of limits that several gateways share."""

    regime: Regime
    gateways: int  # number of gateways known to share the limits

    @property
    def asks(self) -> Mapping[str, int]:
        """Number of client requests for which units were requested from the bus, by outcome."""

    def fit(self, key: str, account: QuotaAccount, now_us: int) -> None:
        """Apply the current way of sharing limits between gateways to this account, named `key`."""

    def request_missing(self, entry: "RequestQuota", done: Callable[[OverLimit | None], None]) -> None:
        """Request from the bus what the entry lacks. `done` is called once with the limit that is exceeded, or None."""


class RequestQuota:
    """One request that entered: its accounts, and the response headers with their limits."""

    __slots__ = ("_cached_weight_ratio", "_quotas", "_tier", "accounts", "headers", "keys", "reservation")

    def __init__(
        self,
        quotas: "TenantQuotas",
        keys: tuple[str, ...],
        accounts: tuple[QuotaAccount, ...],
        quota: QuotaEntry | None,
        headers: MoreHeaders,
    ) -> None:
        self._quotas = quotas
        self._cached_weight_ratio = quota.cached_token_weight_ratio if quota is not None else 0.0
        self._tier = quota.name if quota is not None else ""
        self.accounts = accounts
        self.keys = keys
        self.reservation = Reservation(accounts)
        self.headers = headers

    def reserve(self, features: RequestFeatures, now_s: float, service_class: ServiceClass = "interactive") -> bool:
        """Reserve the expected cost of the request, all or nothing, and return True if all of it was available.

        Raise OverQuota (429, or 400 if waiting cannot help). If part of it is missing in this gateway's lease,
        reserve it anyway, so that other requests do not use it, and return False. The caller then calls
        `TenantQuotas.request_missing`.
        """
        now_us = int(now_s * US_PER_S)
        reservation = self.reservation
        over = reservation.too_large(features)
        if over is not None:
            self._uncount_request(now_us)
            raise refusals.larger_than_all(over, _whose(over, self.accounts, self._tier))
        costs = reservation.costs(features)
        step = self._quotas.regime.step
        if step == "leased":
            over = self._short(costs, now_us)
        elif step == "urgent_only" and service_class == "batch":
            self._uncount_request(now_us)
            raise RequestRejected(errors.unavailable(_LIMITS_UNKNOWN, "limits_unknown", _BATCH_BACK_S))
        else:
            over = self._lacks(costs, now_us)
        if over is not None and over.retry_after_s > 0.0:
            self._refuse(over, now_us)
        reservation.reserve(features, costs, now_us)
        self.headers += refusals.token_headers(self.accounts)
        return over is None

    def answered(self, over: OverLimit | None, now_s: float) -> None:
        """Accept the bus's answer for the missing part; if it was denied, release the reservation, raise OverQuota."""
        if over is not None:
            now_us = int(now_s * US_PER_S)
            self.reservation.release(now_us)
            self._refuse(over, now_us)

    def keyed_accounts(self) -> Iterable[tuple[str, QuotaAccount]]:
        return zip(self.keys, self.accounts, strict=True)

    def progress(self, output_tokens_total: int, now_s: float) -> None:
        """Extend the reservation to these tokens if a stream has produced more output than is reserved."""
        if output_tokens_total > self.reservation.output_tokens:
            self.reservation.extend(output_tokens_total, int(now_s * US_PER_S))

    def settle(
        self,
        usage: Usage | None,
        counted_output_tokens: int,
        kv_token_seconds: float,
        gpu_seconds: float,
        now_s: float,
        *,
        beside: Usage | None = None,
        worked: bool = False,
    ) -> Charged | None:
        """Charge the actual cost; return prompt, cached and output tokens, or None if the request was settled before.

        Without a usage, the delivered tokens are charged, and the reserved prompt if an engine `worked` on it, even
        briefly. `beside` is the usage of another model for the same request; it is charged but not part of the
        returned counts.
        """
        reservation = self.reservation
        if usage is not None:
            prompt_tokens, cached_tokens = usage.prompt_tokens, min(usage.cached_tokens, usage.prompt_tokens)
            output_tokens = usage.completion_tokens
        else:
            pays = worked or counted_output_tokens > 0 or kv_token_seconds > 0.0
            prompt_tokens, cached_tokens = (reservation.input_tokens if pays else 0), 0
            output_tokens = counted_output_tokens
        of_answer = prompt_tokens, cached_tokens, output_tokens
        if beside is not None:
            prompt_tokens += beside.prompt_tokens
            output_tokens += beside.completion_tokens
            cached_tokens += min(beside.cached_tokens, beside.prompt_tokens)
        charged_tokens = prompt_tokens - cached_tokens + round(cached_tokens * self._cached_weight_ratio)
        now_us = int(now_s * US_PER_S)
        if not reservation.settle(charged_tokens, output_tokens, kv_token_seconds, gpu_seconds, now_us):
            return None
        by_whom = self._quotas.settled_by_engine if usage is not None else self._quotas.settled_by_count
        by_whom.requests += 1
        by_whom.input_tokens += charged_tokens
        by_whom.cached_tokens += cached_tokens
        by_whom.output_tokens += output_tokens
        by_whom.kv_token_s += kv_token_seconds
        by_whom.gpu_s += gpu_seconds
        return of_answer

    def leave(self, now_s: float) -> None:
        """Settle at no cost if not settled yet, and free the request's slots. Called once, at the request's end."""
        if self.reservation.state != "settled":
            self.settle(None, 0, 0.0, 0.0, now_s)
        for account in self.accounts:
            account.end_request()

    def _lacks(self, costs: Costs, now_us: int) -> OverLimit | None:
        """Return the limit that `costs` exceed with the longest wait, or None."""
        worst: OverLimit | None = None
        for account in self.accounts:
            over = account.find_shortage(costs, now_us)
            if over is not None:
                worst = _longer(worst, over)
        return worst

    def _short(self, costs: Costs, now_us: int) -> OverLimit | None:
        """Return the lease that `costs` exceed with the longest wait, or None.

        A wait of 0 s means that the bus may still have some.
        """
        worst: OverLimit | None = None
        for account in self.accounts:
            over = account.lease.find_shortage(account, costs, now_us) if account.lease is not None else None
            if over is not None:
                worst = _longer(worst, over)
        return worst

    def _refuse(self, over: OverLimit, now_us: int) -> None:
        """Undo the request's count in all limits, keep the refusal's headers, and raise OverQuota."""
        self._uncount_request(now_us)
        accounts = self.accounts
        headers = refusals.request_headers(accounts) + refusals.token_headers(accounts)
        refused = refusals.over_quota(over, _whose(over, accounts, self._tier), self._quotas.uniform(), headers)
        self.headers = refused.headers
        raise refused

    def _uncount_request(self, now_us: int) -> None:
        for account in self.accounts:
            account.spend(_NO_REQUEST, now_us)


class TenantQuotas:
    """Quota accounts of one gateway. Owned by one event loop; times are monotonic seconds."""

    def __init__(self) -> None:
        self.accounts: OrderedDict[str, QuotaAccount] = OrderedDict()  # by tenant or `tenant/key`
        self.leasing: Leasing | None = None
        self.settled_by_engine = Settled()  # requests settled by the engine's usage
        self.settled_by_count = Settled()  # requests settled by the gateway's own count
        self._last_uniform = -_GOLDEN_RATIO

    @property
    def gateways(self) -> int:
        """Number of gateways known to share these limits and pools; 1 if limits are not shared."""
        return self.leasing.gateways if self.leasing is not None else 1

    @property
    def regime(self) -> Regime:
        return self.leasing.regime if self.leasing is not None else ALONE

    def enter(
        self, tenant: TenantId, quota: QuotaEntry | None, now_s: float, key: KeyEntry | None = None
    ) -> RequestQuota:
        """Count one more request of a tenant and its key; return its quota. Raise OverQuota (429) if over a limit."""
        now_us = int(now_s * US_PER_S)
        keys, accounts = self._accounts_with_room(tenant, quota, now_us, key)
        for account in accounts:
            account.in_flight += 1
            account.spend(_ONE_REQUEST, now_us)
        return RequestQuota(self, keys, accounts, quota, refusals.request_headers(accounts))

    def check(self, tenant: TenantId, quota: QuotaEntry | None, now_s: float, key: KeyEntry | None = None) -> None:
        """Raise OverQuota (429) if one more request could not enter now. Does not count it."""
        self._accounts_with_room(tenant, quota, int(now_s * US_PER_S), key)

    def request_missing(
        self, entry: RequestQuota, now: Callable[[], float], done: Callable[[RequestRejected | None], None]
    ) -> None:
        """Request what `reserve` lacked. `done` is called once, later, with the refusal or None.

        Raise ValueError if limits are not shared between gateways.
        """
        if self.leasing is None:
            raise ValueError("limits are not shared between gateways: there is no lease to request")
        self.leasing.request_missing(entry, _LeaseReply(entry, now, done))

    def occupy_slot(self, tenant: TenantId) -> Callable[[], None]:
        """Occupy a tenant's slot for a request that has ended and is not read yet. Return the function to free it."""
        account = self.accounts.get(tenant)
        if account is None:
            return lambda: None
        account.in_flight += 1
        return account.end_request

    def in_flight(self, tenant: TenantId) -> int:
        account = self.accounts.get(tenant)
        return account.in_flight if account is not None else 0

    def uniform(self) -> float:
        """Return the next number in [0, 1) of a sequence that is spread evenly over rejected requests."""
        self._last_uniform = (self._last_uniform + _GOLDEN_RATIO) % 1.0
        return self._last_uniform

    def forget_idle(self, now_s: float) -> None:
        """Check a few accounts: drop those that are as good as new, move the others to the end of the order."""
        now_us = int(now_s * US_PER_S)
        for _ in range(min(_LOOKED_AT_PER_SWEEP, len(self.accounts))):
            key, account = self.accounts.popitem(last=False)
            if not account.is_idle(now_us):
                self.accounts[key] = account

    def _accounts_with_room(
        self, tenant: TenantId, quota: QuotaEntry | None, now_us: int, key: KeyEntry | None
    ) -> tuple[tuple[str, ...], tuple[QuotaAccount, ...]]:
        """Return names and accounts of a request: its tenant's, and its key's if that has limits.

        Raise OverQuota (429) if one of them is full.
        """
        limits = quota.limits if quota is not None else UNLIMITED
        keys: tuple[str, ...] = (tenant,)
        accounts: tuple[QuotaAccount, ...] = (self._account(tenant, limits, now_us),)
        if key is not None and key.limits is not None:
            keys = (tenant, f"{tenant}/{key.key_id}")
            accounts = (*accounts, self._account(keys[1], key.limits, now_us))
        over = _over_on_entry(accounts, now_us, self.regime.step == "leased")
        if over is not None:
            whose = _whose(over, accounts, quota.name if quota is not None else "")
            raise refusals.over_quota(over, whose, self.uniform(), refusals.request_headers(accounts))
        return keys, accounts

    def _account(self, key: str, limits: QuotaLimitsPart, now_us: int) -> QuotaAccount:
        account = self.accounts.get(key)
        if account is None:
            account = self.accounts[key] = QuotaAccount()
        if limits is not account.limits:
            account.set_limits(limits, now_us)
        if self.leasing is not None:
            self.leasing.fit(key, account, now_us)
        return account

    def __len__(self) -> int:
        return len(self.accounts)


class _LeaseReply:
    """Callback that turns the bus's answer into a refusal or None."""

    __slots__ = ("_done", "_entry", "_now")

    def __init__(
        self, entry: RequestQuota, now: Callable[[], float], done: Callable[[RequestRejected | None], None]
    ) -> None:
        self._entry, self._now, self._done = entry, now, done

    def __call__(self, over: OverLimit | None) -> None:
        try:
            self._entry.answered(over, self._now())
        except RequestRejected as refused:
            self._done(refused)
        else:
            self._done(None)


def _longer(one: OverLimit | None, other: OverLimit) -> OverLimit:
    return other if one is None or other.retry_after_s > one.retry_after_s else one


def _whose(over: OverLimit, accounts: tuple[QuotaAccount, ...], tier: str) -> str:
    """Return the owner of the limit as the subject of a message: "The tier 'NAME'" or "This key"."""
    of_tenant = getattr(accounts[0].limits, over.dimension)
    return f"The tier '{tier}'" if of_tenant == over.limit or len(accounts) == 1 else "This key"


def _over_on_entry(accounts: tuple[QuotaAccount, ...], now_us: int, leased: bool) -> OverLimit | None:
    worst: OverLimit | None = None
    for account in accounts:
        lease = account.lease if leased else None
        over = lease.denies_entry(account, now_us) if lease is not None else account.denies_entry(now_us)
        if over is not None:
            worst = _longer(worst, over)
    return worst
