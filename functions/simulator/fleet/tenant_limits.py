"""Tenants' limits at one gateway: reserved on arrival, settled at the end, by `decisions.quota.account` and its kin.

Alone, a gateway keeps them by itself. Several lease them from the bus (`quota_bus`), as the gateway's `quota_leasing`
does: rounds of asking ahead four times a second, and at once for what a request lacks; who has lost touch with the bus
goes by what `decisions.quota.outage` says. Left out: the milliseconds that an ask takes.

Bounded by who may call: an account is forgotten when it is as good as new. Neighbours: `gateway` enters and leaves.
"""

from collections import OrderedDict

from functions.api.ids import TenantId
from functions.api.snapshot import QuotaEntry
from functions.decisions.admission.bands import BATCH
from functions.decisions.quota.account import QuotaAccount, fit
from functions.decisions.quota.dimensions import GRAINS, REQUESTS
from functions.decisions.quota.lease import AccountLease
from functions.decisions.quota.outage import Regime, regime_of
from functions.decisions.quota.reservation import Reservation
from functions.decisions.quota.token_bucket import US_PER_S
from functions.decisions.request.cost import kv_token_seconds
from functions.decisions.request.features import RequestFeatures
from functions.simulator.fleet.quota_bus import QuotaBus, wish_of_missing, wish_of_round
from functions.simulator.fleet.request import Request
from functions.simulator.fleet.setting import Setting

_ONE_REQUEST = (GRAINS[REQUESTS], 0, 0, 0, 0)
_NO_REQUEST = (-GRAINS[REQUESTS], 0, 0, 0, 0)
_LOOKED_AT_PER_SWEEP = 500
_ALONE = Regime("share", 1)


class Held:
    """What one request has reserved."""

    __slots__ = ("account", "reservation", "tenant")

    def __init__(self, tenant: TenantId, account: QuotaAccount) -> None:
        self.tenant = tenant
        self.account = account
        self.reservation = Reservation((account,))


class TenantLimits:
    """Of one gateway. Times are seconds of the simulation."""

    def __init__(self, name: str, setting: Setting, bus: QuotaBus | None) -> None:
        self._name = name
        self._setting = setting
        self._bus = bus  # None: it is alone
        self._gateways = setting.gateways
        self._regime = regime_of(None, setting.gateways) if bus is not None else _ALONE
        self._accounts: OrderedDict[TenantId, QuotaAccount] = OrderedDict()
        self._active: dict[TenantId, QuotaAccount] = {}
        self._lost_s: float | None = None  # touch with the bus

    def enter(self, request: Request, now_s: float) -> Held | None:
        """None: it is over one of its tenant's limits."""
        asked, now_us = request.asked, int(now_s * US_PER_S)
        account = self._account(asked.tenant, now_us)
        held = Held(asked.tenant, account)
        if self._denies_entry(account, now_us):
            return None
        account.in_flight += 1
        account.take(_ONE_REQUEST, now_us)
        features = RequestFeatures(
            prompt_bytes=0,
            prompt_tokens=asked.prompt_tokens,
            prompt_exact=True,
            max_output_tokens=request.expected_tokens,
            expected_output_tokens=request.expected_tokens,
        )
        if self._may_come(held, features, asked.band, now_us):
            return held
        account.take(_NO_REQUEST, now_us)
        account.leave()
        return None

    def leave(self, request: Request, now_s: float) -> None:
        """It has ended, served or not; nobody pays for what nobody got."""
        held, request.held = request.held, None
        if held is None:
            return
        now_us, asked = int(now_s * US_PER_S), request.asked
        if request.first_s:
            prefill_s, decode_s = request.first_s - request.sent_s, now_s - request.first_s
            kv_s = kv_token_seconds(asked.prompt_tokens, asked.output_tokens, prefill_s, decode_s)
            held.reservation.settle(asked.prompt_tokens, asked.output_tokens, kv_s, 0.0, now_us)
        else:
            held.reservation.settle(0, 0, 0.0, 0.0, now_us)
        held.account.leave()

    def sweep(self, now_s: float) -> None:
        """Forget, a few at a time, accounts that are as good as new."""
        now_us = int(now_s * US_PER_S)
        for _ in range(min(_LOOKED_AT_PER_SWEEP, len(self._accounts))):
            tenant, account = self._accounts.popitem(last=False)
            if tenant in self._active or not account.is_idle(now_us):
                self._accounts[tenant] = account

    def round(self, now_s: float, *, in_touch: bool) -> None:
        """Ask ahead for what accounts in use want; four times a second."""
        if self._bus is None:
            return
        now_us = int(now_s * US_PER_S)
        if not in_touch:
            self._lost_s = now_s if self._lost_s is None else self._lost_s
            self._switch(regime_of(now_s - self._lost_s, self._gateways), now_us)
            return
        self._lost_s = None
        self._switch(regime_of(None, self._gateways), now_us)
        for tenant, account in list(self._active.items()):
            lease = _lease_of(account)
            wish = wish_of_round(account, lease, now_us)
            self._bus.grant(self._name, tenant, account, wish, now_us, all_or_none=False)
            for index, _ in account.limited:
                lease.rate(index).round_ended(now_us)
            if lease.is_idle(now_us) and not account.in_flight and _is_even(account):
                account.regime = None
                del self._active[tenant]

    def __len__(self) -> int:
        return len(self._accounts)

    # inside

    def _account(self, tenant: TenantId, now_us: int) -> QuotaAccount:
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = QuotaAccount()
        quota = self._quota_of(tenant)
        if quota is not None and quota.limits is not account.limits:
            account.hold(quota.limits, now_us)
        if account.regime is not self._regime and self._bus is not None:
            fit(account, self._regime, now_us)
            if self._regime.step == "leased" and (account.limited or account.slots is not None):
                self._active[tenant] = account
        return account

    def _quota_of(self, tenant: TenantId) -> QuotaEntry | None:
        return self._setting.quotas.get(tenant, self._setting.quota)

    def _denies_entry(self, account: QuotaAccount, now_us: int) -> bool:
        if self._regime.step == "leased" and account.lease is not None:
            return account.lease.denies_entry(account, now_us) is not None
        return account.is_full() or account.lacks_request(now_us) is not None

    def _may_come(self, held: Held, features: RequestFeatures, band: int, now_us: int) -> bool:
        """Reserve all of it or nothing."""
        reservation, account = held.reservation, held.account
        costs = reservation.costs(features)
        if reservation.too_large(features) is not None or (self._regime.step == "urgent_only" and band == BATCH):
            return False
        if self._regime.step != "leased" or account.lease is None or self._bus is None:
            over, may_ask = account.lacks(costs, now_us), False
        else:
            over, may_ask = account.lease.short(account, costs, now_us), True
        if over is not None and (over.retry_after_s > 0.0 or not may_ask):
            return False
        reservation.take(features, costs, now_us)
        return over is None or self._is_granted(held, account, now_us)

    def _is_granted(self, held: Held, account: QuotaAccount, now_us: int) -> bool:
        """The bus gives what is missing, or all is given back."""
        reservation = held.reservation
        if account.lease is None or self._bus is None:
            return False
        wish = wish_of_missing(account, account.lease, reservation.held)
        if self._bus.grant(self._name, held.tenant, account, wish, now_us, all_or_none=True):
            return True
        reservation.release(now_us)
        return False

    def _switch(self, regime: Regime, now_us: int) -> None:
        if regime == self._regime:
            return
        if self._regime.step == "leased":
            for account in self._active.values():
                fit(account, regime, now_us)
        self._active = {}
        self._regime = regime


def _lease_of(account: QuotaAccount) -> AccountLease:
    if account.lease is None:
        raise ValueError("the account was never fitted to a lease")
    return account.lease


def _is_even(account: QuotaAccount) -> bool:
    """Nothing is held or owed."""
    return not _lease_of(account).places and all(-bucket.grain < bucket.level <= 0 for _, bucket in account.limited)
