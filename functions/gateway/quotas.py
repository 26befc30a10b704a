"""What each tenant may still ask of this gateway: one account per tenant, which outlives snapshots.

Counted here alone, per gateway and in memory: with several gateways each lets the whole limit through. The decisions
are `functions.decisions.tenant_use`; this keeps the accounts, writes the `x-ratelimit-*` headers, and says 429.

The accounts are bounded by who may call: only tenants of a snapshot get one, and the sweep forgets, a few at a time,
those that would decide nothing any more. That is also how tenants go that have vanished from the snapshot.
"""

from collections import OrderedDict
from math import ceil

from functions.api.ids import TenantId
from functions.api.snapshot import QuotaEntry, QuotaLimits
from functions.decisions.tenant_use import OverLimit, TenantUse
from functions.gateway.errors import ErrorAnswer, OverQuota
from functions.gateway.sink import MoreHeaders

_UNLIMITED = QuotaLimits()
_LOOKED_AT_PER_SWEEP = 256  # 50,000 idle accounts are gone in less than a minute, at 20 us a sweep
_TYPES = {"concurrent_requests": "concurrency", "requests_per_minute": "requests"}


class Entry:
    """One request that entered: its tenant's account, and what the answer says of the limit."""

    __slots__ = ("_use", "headers")

    def __init__(self, use: TenantUse, headers: MoreHeaders) -> None:
        self._use = use
        self.headers = headers

    def leave(self) -> None:
        """The request has ended. Called once."""
        self._use.leave()


class TenantQuotas:
    """Owned by one event loop. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._uses: OrderedDict[TenantId, TenantUse] = OrderedDict()

    def enter(self, tenant: TenantId, quota: QuotaEntry | None, now_s: float) -> Entry:
        """Count one more request of a tenant; raises OverQuota (429) where that is one too many."""
        use = self._uses.get(tenant)
        if use is None:
            use = self._uses[tenant] = TenantUse()
        limits = quota.limits if quota is not None else _UNLIMITED
        over = use.enter(limits, now_s)
        per_minute = limits.requests_per_minute
        headers = _rate_headers(use, per_minute) if per_minute is not None else ()
        if over is not None and quota is not None:
            raise OverQuota(_too_many(over, quota.name), over.dimension, headers)
        return Entry(use, headers)

    def in_flight(self, tenant: TenantId) -> int:
        use = self._uses.get(tenant)
        return use.in_flight if use is not None else 0

    def forget_idle(self, now_s: float) -> None:
        """Drop accounts that are as good as new; the rest of those looked at go to the end of the line."""
        for _ in range(min(_LOOKED_AT_PER_SWEEP, len(self._uses))):
            tenant, use = self._uses.popitem(last=False)
            if not use.is_idle(now_s):
                self._uses[tenant] = use

    def __len__(self) -> int:
        return len(self._uses)


def _too_many(over: OverLimit, tier: str) -> ErrorAnswer:
    if over.dimension == "concurrent_requests":
        message = (
            f"The tier '{tier}' allows {over.limit} requests at a time, and that many are under way. "
            "Wait for one to end, or ask for a higher tier."
        )
    else:
        message = (
            f"The tier '{tier}' allows {over.limit} requests a minute, and they are used up. "
            f"Try again in {max(1, ceil(over.retry_after_s))} s, or ask for a higher tier."
        )
    retry_after_s = max(1, ceil(over.retry_after_s))
    return ErrorAnswer(429, _TYPES[over.dimension], "rate_limit_exceeded", message, retry_after_s=retry_after_s)


def _rate_headers(use: TenantUse, per_minute: int) -> MoreHeaders:
    return (
        (b"x-ratelimit-limit-requests", b"%d" % per_minute),
        (b"x-ratelimit-remaining-requests", b"%d" % use.rate.remaining(per_minute)),
        (b"x-ratelimit-reset-requests", _duration(use.rate.full_again_s(per_minute))),
    )


def _duration(seconds: float) -> bytes:
    """As OpenAI writes it: `20ms`, `8.6s`, `1m0s`."""
    if seconds < 1.0:
        return b"%dms" % ceil(seconds * 1000)
    if seconds < 60.0:
        return b"%.1fs" % seconds
    minutes, rest = divmod(ceil(seconds), 60)
    return b"%dm%ds" % (minutes, rest)
