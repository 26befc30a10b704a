"""Queries of the trace store: one request by its id, and a search over requests, for one tenant or all.

Sorting whole rows of a week takes gigabytes. A search therefore first finds the keys of the first rows in its
order, with few columns in memory, and then reads only those rows. Rows may exist twice until they are merged, with
every column equal. `LIMIT 1 BY` the sorting key removes duplicates at less cost than FINAL, and the search finds
four times as many keys as rows are wanted. Sums must use FINAL, or read `shoal.requests_hourly`.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from functions.telemetry.store.client import TraceStore
from functions.telemetry.trace_row import RowInvalid, TraceRow

_COLUMNS = "* EXCEPT ts, toFloat64(ts) AS ts_s"
_ONCE = "LIMIT 1 BY tenant_id, ts, request_id"
_KEY = "toStartOfHour(requests.ts), tenant_id, requests.ts, request_id"  # the table's sorting key
_COPIES = 4
MOST_ROWS = 10_000
SLOWEST, NEWEST = "total_ms DESC, ts DESC", "ts DESC"


@dataclass(frozen=True, slots=True)
class Search:
    """Filters of a search; None matches any value. Times are of requests' arrival, in Unix seconds."""

    since_s: float
    until_s: float | None = None
    tenant: str | None = None
    model: str | None = None
    pool: str | None = None
    replica: str | None = None
    trace_id: str | None = None
    errors: bool = False  # status 400 or above, client errors included
    over_ms: float | None = None  # total time of the request
    slowest_first: bool = False  # False: newest first
    limit: int = 50


def find(store: TraceStore, request_id: str, tenant: str | None = None) -> TraceRow | None:
    """Return the newest row of a request, of this tenant only if one is given; None if there is none. Callers choose
    ids, and may choose one again."""
    values: dict[str, str | int | float] = {"request_id": request_id}
    where = "request_id = {request_id:String}"
    if tenant is not None:
        where, values["tenant"] = f"{where} AND tenant_id = {{tenant:String}}", tenant
    sql = f"SELECT {_COLUMNS} FROM shoal.requests WHERE {where} ORDER BY requests.ts DESC LIMIT 1"  # noqa: S608 - our own words; values go apart
    found = store.select(sql, values)
    return _row(found[0]) if found else None


def search(store: TraceStore, asked: Search) -> list[TraceRow]:
    terms, values = _terms(asked)
    order = SLOWEST if asked.slowest_first else NEWEST
    where, limit = " AND ".join(terms), min(asked.limit, MOST_ROWS)
    keys = f"SELECT {_KEY} FROM shoal.requests WHERE {where} ORDER BY {order} LIMIT {limit * _COPIES}"  # noqa: S608 - our own words; values go apart
    sql = (
        f"SELECT {_COLUMNS} FROM shoal.requests WHERE ({_KEY}) IN ({keys}) AND {where} "  # noqa: S608 - the same
        f"ORDER BY {order} {_ONCE} LIMIT {limit}"
    )
    return [_row(each) for each in store.select(sql, values)]


def _terms(asked: Search) -> tuple[list[str], dict[str, str | int | float]]:
    values: dict[str, str | int | float] = {"since": round(asked.since_s * 1e6)}
    terms = ["ts >= fromUnixTimestamp64Micro({since:Int64}, 'UTC')"]
    if asked.until_s is not None:
        terms.append("ts < fromUnixTimestamp64Micro({until:Int64}, 'UTC')")
        values["until"] = round(asked.until_s * 1e6)
    for column, value in (
        ("tenant_id", asked.tenant), ("pool", asked.pool), ("replica_id", asked.replica), ("trace_id", asked.trace_id),
    ):  # fmt: skip
        if value is not None:
            terms.append(f"{column} = {{{column}:String}}")
            values[column] = value
    if asked.model is not None:
        terms.append("(model_id = {model:String} OR concat(model_id, '@', version) = {model:String})")
        values["model"] = asked.model
    if asked.errors:
        terms.append("status >= 400")
    if asked.over_ms is not None:
        terms.append("total_ms >= {over:Float64}")
        values["over"] = asked.over_ms
    return terms, values


def _row(found: dict[str, Any]) -> TraceRow:
    """Convert a row of the store to a TraceRow; RowInvalid if it is not one that a gateway writes."""
    try:
        score = orjson.loads(found.get("route_score") or "{}")
        return msgspec.convert({**found, "ts": found["ts_s"], "route_score": score}, TraceRow, strict=False)
    except (msgspec.ValidationError, ValueError, KeyError) as error:
        raise RowInvalid(str(error)) from error
