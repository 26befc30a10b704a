"""Use of each tenant against its limits, over the last minutes and over this hour and the one before.

    share = used in a time / (limit x time / period)      1.2: a fifth more than the limit over that time

Worked example (test_worked_example_from_the_prologue): 30,000 prompt tokens in 5 minutes, of which 10,000 were cached
and count nothing, under a limit of 10,000 a minute: 20,000 / 50,000 = 0.4.

Use comes from the ledger, to which gateways report every ten seconds and which all registries share. It is therefore
right over minutes and some seconds late. Limits are enforced by gateways, with token buckets. Only gateways know a
tenant's open requests, so that limit is shown without a share.
"""

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection

from functions.api.snapshot import QuotaEntry, QuotaLimitsPart, Snapshot, TenantEntry
from functions.decisions.quota.dimensions import DIMENSIONS, PERIODS_S
from functions.fleet.usage_report import SECONDS_PER_HOUR
from functions.registry.sql import usage
from functions.registry.sql.database import Database
from functions.registry.sql.usage import UsageFilter

SHOWN_MAX = 200
ROWS_MAX = 10_000  # rows (tenant and hour) of one reading
EVERY_S = 30.0
KEPT = 11  # readings: the last five minutes
_ROW_BYTES = 700  # measured: 642
MOST_BYTES = (KEPT + 1) * ROWS_MAX * _ROW_BYTES  # 80 MiB with 5,000 tenants, including a reading in progress
_MODELS_SHOWN = 20
_MEASURES: Final = (
    *("requests", "failed", "prompt_tokens", "cached_tokens", "completion_tokens"),
    *("kv_token_seconds", "accelerator_seconds", "cost"),
)

Used = Mapping[str, float]
_NOTHING: Used = dict.fromkeys(_MEASURES, 0)


@dataclass(frozen=True, slots=True)
class UsageReading:
    """The last two hours of the ledger, read at one moment, by tenant and hour."""

    at_unix_s: float
    rows: Mapping[tuple[str, int], Used]


def read_usage(connection: Connection, now_unix_s: float) -> UsageReading:
    hour = int(now_unix_s // SECONDS_PER_HOUR)
    found = usage.sums(connection, UsageFilter(hour - 1, hour + 1), ("tenant", "hour"), ROWS_MAX)
    rows = {(row["tenant"], int(row["hour"])): {name: row[name] for name in _MEASURES} for row in found}
    return UsageReading(now_unix_s, rows)


@dataclass(slots=True)
class RecentUse:
    """Readings of the last minutes. Owned by one event loop."""

    looks: deque[UsageReading] = field(default_factory=lambda: deque(maxlen=KEPT))

    async def watch(self, database: Database, wall_clock: Callable[[], float] = time.time) -> None:
        """Add a reading of all tenants' use from the ledger every EVERY_S until cancelled. Raises
        DatabaseUnavailable."""
        while True:
            read = functools.partial(database.read, functools.partial(read_usage, now_unix_s=wall_clock()))
            self.looks.append(await database.run(read, for_operator=True))
            await asyncio.sleep(EVERY_S)

    def used_since(self, newest: UsageReading) -> tuple[float, Mapping[str, Used]]:
        """Return the seconds from the oldest recent reading to `newest`, and what each tenant used in them; 0 s and
        nothing if there is no reading that is old enough."""
        oldest = next((each for each in self.looks if each.at_unix_s > newest.at_unix_s - KEPT * EVERY_S), None)
        if oldest is None or newest.at_unix_s - oldest.at_unix_s < EVERY_S / 2:
            return 0.0, {}
        added: dict[str, dict[str, float]] = {}
        for (tenant, hour), row in newest.rows.items():
            before = oldest.rows.get((tenant, hour), _NOTHING)
            mine = added.setdefault(tenant, dict(_NOTHING))
            for name in _MEASURES:
                mine[name] += max(0, row[name] - before[name])
        return newest.at_unix_s - oldest.at_unix_s, added


def described_tenants(
    snapshot: Snapshot | None, newest: UsageReading, recent: tuple[float, Mapping[str, Used]], search: str, limit: int
) -> dict[str, Any]:
    """Describe the `limit` busiest tenants whose names contain `search`, the busiest first; the use of the rest is
    summed up in `other`."""
    tenants = snapshot.tenants if snapshot is not None else ()
    tiers = {tier.name: tier for tier in snapshot.quotas} if snapshot is not None else {}
    keys: dict[str, int] = {}
    for key in snapshot.keys if snapshot is not None else ():
        keys[key.tenant] = keys.get(key.tenant, 0) + 1
    totals = _totals(newest)
    found = sorted((each for each in tenants if search in each.name), key=lambda each: _rank(totals, each))
    shown, rest = found[:limit], found[limit:]
    seconds = _elapsed_s(newest.at_unix_s)
    return {
        "object": "list",
        "data": [
            {
                **_about(each, keys.get(each.name, 0)),
                **_use(tiers.get(each.tier), totals.get(each.name, _NOTHING), seconds),
                "share_recently": _recently(tiers.get(each.tier), recent, each.name),
            }
            for each in shown
        ],
        "other": _added(totals.get(each.name, _NOTHING) for each in rest) if rest else None,
        "found": len(found),
        "total": len(tenants),
        "hours_s": seconds,
        "recent_s": recent[0],
    }


def shares(limits: QuotaLimitsPart, cached_weight_ratio: float, used: Used, seconds: float) -> dict[str, float]:
    """Return the use in `seconds` as a share of the tier's limit for that time, for each dimension that has a limit;
    empty for 0 s."""
    uncached = used["prompt_tokens"] - used["cached_tokens"] * (1.0 - cached_weight_ratio)
    amounts = (
        *(used["requests"], uncached, used["completion_tokens"]),
        *(used["kv_token_seconds"], used["accelerator_seconds"]),
    )
    limited = [(name, getattr(limits, name)) for name in DIMENSIONS]
    return {
        name: amount / (limit * seconds / period_s)
        for (name, limit), amount, period_s in zip(limited, amounts, PERIODS_S, strict=True)
        if limit and seconds > 0
    }


def _about(tenant: TenantEntry, keys: int) -> dict[str, Any]:
    return {
        "name": tenant.name,
        "tier": tenant.tier,
        "pools": tenant.pools,
        "models": list(tenant.models[:_MODELS_SHOWN]),
        "models_total": len(tenant.models),
        "keys": keys,
    }


def _use(tier: QuotaEntry | None, used: Used, seconds: float) -> dict[str, Any]:
    limits, cached_weight_ratio = _limits(tier)
    return {
        "weight": tier.weight if tier is not None else 1.0,
        "limits": {name: getattr(limits, name) for name in (*DIMENSIONS, "concurrent_requests")},
        "used": dict(used),
        "share_of_hours": shares(limits, cached_weight_ratio, used, seconds),
    }


def _recently(
    tier: QuotaEntry | None, recent: tuple[float, Mapping[str, Used]], tenant: str
) -> dict[str, float] | None:
    """Return the shares of the limits that the tenant used in the last minutes, or None if these are not known yet."""
    recent_s, lately = recent
    return shares(*_limits(tier), lately.get(tenant, _NOTHING), recent_s) if recent_s else None


def _limits(tier: QuotaEntry | None) -> tuple[QuotaLimitsPart, float]:
    return (tier.limits, tier.cached_token_weight_ratio) if tier is not None else (QuotaLimitsPart(), 0.0)


def _totals(newest: UsageReading) -> dict[str, Used]:
    by_tenant: dict[str, list[Used]] = {}
    for (tenant, _), row in newest.rows.items():
        by_tenant.setdefault(tenant, []).append(row)
    return {tenant: _added(rows) for tenant, rows in by_tenant.items()}


def _added(rows: Any) -> Used:
    listed: Sequence[Used] = list(rows)
    return {name: sum(row[name] for row in listed) for name in _MEASURES}


def _rank(totals: Mapping[str, Used], tenant: TenantEntry) -> tuple[float, str]:
    used = totals.get(tenant.name, _NOTHING)
    return (-(used["prompt_tokens"] + used["completion_tokens"]), tenant.name)


def _elapsed_s(now_unix_s: float) -> float:
    """Return the seconds of the previous hour and of the present one so far."""
    return SECONDS_PER_HOUR + now_unix_s % SECONDS_PER_HOUR
