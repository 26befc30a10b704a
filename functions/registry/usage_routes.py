"""`/v1/usage`: use and cost, for each tenant its own; `/v1/usage/pools`, for the operator: use and idle time of
pools.

    POST /internal/v1/usage     a gateway's report, which is counted once; the answer says if it was new
    GET  /v1/usage              sums by any of tenant, model, version, pool, class, day and hour
    GET  /v1/usage/pools        of each pool: paid, used, lost and idle, and the price at which it breaks even

Hours are whole, from the one that contains `since` to the one that contains `until`. Costs are in the operator's
currency.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Depends, Query, Request

from functions.api.ids import MODEL_ID_PATTERN, NAME_PATTERN
from functions.decisions.usage.money import PoolCapacity, PoolUse, per_million, pool_money
from functions.fleet import usage_report
from functions.fleet.usage_report import REPORT_MAX_BYTES, SECONDS_PER_HOUR, USAGE_PATH, ReportInvalid
from functions.registry.conventions import read_body
from functions.registry.errors import ApiError
from functions.registry.principal import Principal
from functions.registry.services import RegistryServices
from functions.registry.sql import usage
from functions.registry.sql.usage import Dimension, UsageFilter

DAYS_SHOWN = 30  # default of `since`
ROWS_MAX = 5000
_UNIX_MAX = 10**10
_DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
_OF_THE_PLATFORM = "lost_"  # fields for the operator only
_NOBODY = ""  # matches no tenant: another tenant's usage looks empty

Since = Annotated[float | None, Query(ge=0, le=_UNIX_MAX, description="Unix seconds. Default: 30 days before `until`.")]
Until = Annotated[float | None, Query(ge=0, le=_UNIX_MAX, description="Unix seconds. Default: now.")]
By = Annotated[str, Query(max_length=100, description=f"Comma-separated dimensions: {', '.join(_DIMENSIONS)}.")]
OfTenant = Annotated[str | None, Query(pattern=rf"^{NAME_PATTERN}$", description="Only usage of this tenant.")]
OfModel = Annotated[str | None, Query(pattern=rf"^{MODEL_ID_PATTERN}$", description="Only usage of this model.")]
OfPool = Annotated[str | None, Query(pattern=rf"^{NAME_PATTERN}$", description="Only usage of this pool.")]


def usage_routes(services: RegistryServices) -> APIRouter:
    router = APIRouter()
    authenticator, database = services.authenticator, services.database

    @router.post(USAGE_PATH, dependencies=[Depends(authenticator.gateway)])
    async def count_usage_report(request: Request) -> dict[str, Any]:
        """Count a gateway's report. A report that is sent again counts once."""
        try:
            report = usage_report.decode(b"".join(await read_body(request, REPORT_MAX_BYTES)))
        except ReportInvalid as error:
            raise ApiError(400, "invalid_body", f"the body cannot be used: {error}") from error
        now_unix_s = database.now_unix_s()
        count = functools.partial(database.write_unaudited, lambda c: usage.count_report(c, report, now_unix_s))
        return {"object": "usage.report", "is_new": await database.run(count)}

    @router.get("/v1/usage")
    async def used(
        *,
        who: Annotated[Principal, Depends(authenticator.reader)],
        by: By = "tenant,model",
        since: Since = None,
        until: Until = None,
        tenant: OfTenant = None,
        model: OfModel = None,
        pool: OfPool = None,
    ) -> dict[str, Any]:
        """Sums of usage by the dimensions in `by`. A tenant sees only its own; the operator sees all."""
        dimensions = _dimensions(by)
        since_hour, until_hour = _hours(since, until, database.now_unix_s())
        whose = who.tenant if tenant is None else tenant if who.owns(tenant) else _NOBODY
        wanted = UsageFilter(since_hour, until_hour, whose, model, pool)
        read = functools.partial(
            database.read,
            lambda c: (
                usage.sums(c, wanted, dimensions, ROWS_MAX + 1),
                usage.sums(c, wanted, (), 1),
                usage.last_told_unix_s(c),
            ),
        )
        rows, total, told_unix_s = await database.run(read, for_operator=who.is_operator)
        return {
            "object": "usage",
            "since_unix_s": since_hour * SECONDS_PER_HOUR,
            "until_unix_s": until_hour * SECONDS_PER_HOUR,
            "last_told_unix_s": told_unix_s,
            "by": list(dimensions),
            "data": [_described(row, who) for row in rows[:ROWS_MAX]],
            "total": _described(total[0], who) if total else None,
            "has_more": len(rows) > ROWS_MAX,
        }

    @router.get("/v1/usage/pools")
    async def pools(
        who: Annotated[Principal, Depends(authenticator.operator)], since: Since = None, until: Until = None
    ) -> dict[str, Any]:
        """Cost of each pool: paid for its replicas, and used, lost and idle shares of it."""
        since_hour, until_hour = _hours(since, until, database.now_unix_s())
        read = functools.partial(
            database.read,
            lambda c: (
                usage.sums(c, UsageFilter(since_hour, until_hour), ("pool",), ROWS_MAX),
                usage.capacity_of(c, since_hour, until_hour),
            ),
        )
        used, had = await database.run(read, for_operator=True)
        by_pool = {row["pool"]: _use(row) for row in used}
        return {
            "object": "usage.pools",
            "since_unix_s": since_hour * SECONDS_PER_HOUR,
            "until_unix_s": until_hour * SECONDS_PER_HOUR,
            "data": [
                _pool_described(name, had.get(name, PoolCapacity()), by_pool.get(name, PoolUse()))
                for name in sorted(by_pool.keys() | had.keys())
            ],
        }

    return router


def _dimensions(by: str) -> Sequence[Dimension]:
    asked = [each.strip() for each in by.split(",") if each.strip()]
    known = [dimension for name in asked for dimension in _DIMENSIONS if dimension == name]
    if len(known) != len(asked) or len(set(known)) != len(known):
        message = f"by is {by[:100]!r}; allowed: one or more of {', '.join(_DIMENSIONS)}, each once"
        raise ApiError(400, "invalid_parameter", message, "by")
    return known


def _hours(since: float | None, until: float | None, now_unix_s: float) -> tuple[int, int]:
    """Return the first hour of the time range and the hour after its last, in hours since 1970; by default the last
    DAYS_SHOWN days until now. Raises ApiError 400 if `since` is later than `until`."""
    ends = until if until is not None else now_unix_s
    begins = since if since is not None else max(0.0, ends - DAYS_SHOWN * 86_400)
    if begins > ends:
        raise ApiError(400, "invalid_parameter", "since is later than until", "since")
    return int(begins // SECONDS_PER_HOUR), int(-(-ends // SECONDS_PER_HOUR))


def _described(row: dict[str, Any], who: Principal) -> dict[str, Any]:
    tokens = row["prompt_tokens"] + row["completion_tokens"]
    shown = {name: value for name, value in row.items() if who.is_operator or not name.startswith(_OF_THE_PLATFORM)}
    return shown | {"cost_per_million_tokens": per_million(row["cost"], tokens)}


def _use(row: dict[str, Any]) -> PoolUse:
    return PoolUse(
        tokens=row["prompt_tokens"] + row["completion_tokens"],
        accelerator_seconds=row["accelerator_seconds"],
        cost=row["cost"],
        lost_accelerator_seconds=row["lost_accelerator_seconds"],
        lost_cost=row["lost_cost"],
    )


def _pool_described(name: str, had: PoolCapacity, use: PoolUse) -> dict[str, Any]:
    seen = {"minutes_seen": had.minutes, "replica_seconds": had.replica_seconds, "tokens": use.tokens}
    return {"pool": name, **seen, **dataclasses.asdict(pool_money(had, use))}
