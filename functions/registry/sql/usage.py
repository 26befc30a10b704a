"""Usage and capacity in SQL: each report and each minute counts once; sums by any dimensions.

A report is counted in one transaction with its number, and the next report of its source must have a higher number.
So a report that arrives again changes nothing, whichever registry received it. The same holds for a minute of
capacity: all registries of a database watch the fleet, and the first count of a minute stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Insert, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite

from functions.decisions.usage.money import PoolCapacity
from functions.fleet.usage_report import KEY_FIELDS, MEASURES, UsageReport
from functions.registry.sql.tables import capacity, usage, usage_sources

Dimension = Literal["tenant", "model", "version", "pool", "class", "day", "hour"]
HOURS_PER_DAY = 24
_SLICE = 500
_SOURCE_KEPT_S = 90 * 86_400.0  # longer than a gateway's spool holds a report


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Filter of usage rows: from `since_hour` up to, not including, `until_hour`. None matches all."""

    since_hour: int
    until_hour: int
    tenant: str | None = None
    model: str | None = None
    pool: str | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        wanted = [usage.c.hour >= self.since_hour, usage.c.hour < self.until_hour]
        for name in ("tenant", "model", "pool"):
            value = getattr(self, name)
            if value is not None:
                wanted.append(usage.c[name] == value)
        return wanted


@dataclass(frozen=True, slots=True)
class MinuteOfPool:
    pool: str
    replicas: int
    accelerators: int  # sum over all replicas
    price_per_accelerator_hour: float


def count_report(connection: Connection, report: UsageReport, now_unix_s: float) -> bool:
    """Add a gateway's usage report to the sums. Return False, and add nothing, if this or a later report of its source
    was counted before."""
    mark = _insert(connection, usage_sources).values(
        source=report.source, gateway_id=report.gateway_id, sequence=report.sequence, told_unix_s=now_unix_s
    )
    newer = mark.on_conflict_do_update(
        index_elements=["source"],
        set_={"sequence": report.sequence, "told_unix_s": now_unix_s},
        where=usage_sources.c.sequence < report.sequence,
    ).returning(usage_sources.c.sequence)
    if connection.execute(newer).first() is None:
        return False
    adding = _insert(connection, usage)
    added = adding.on_conflict_do_update(
        index_elements=list(KEY_FIELDS), set_={name: usage.c[name] + adding.excluded[name] for name in MEASURES}
    )
    rows = sorted(({name: getattr(row, name) for name in KEY_FIELDS + MEASURES} for row in report.rows), key=_key)
    for start in range(0, len(rows), _SLICE):  # sorted, so that two reports cannot deadlock
        connection.execute(added, rows[start : start + _SLICE])
    return True


def count_minute(connection: Connection, minute: int, pools: Sequence[MinuteOfPool]) -> None:
    """Add the minute (Unix seconds / 60) to the capacity of each pool for which it was not counted."""
    adding = _insert(connection, capacity)
    added = adding.on_conflict_do_update(
        index_elements=["hour", "pool"],
        set_={
            "last_minute": adding.excluded.last_minute,
            **{
                name: capacity.c[name] + adding.excluded[name]
                for name in ("minutes", "replica_seconds", "accelerator_seconds", "cost")
            },
        },
        where=capacity.c.last_minute < minute,
    )
    for seen in sorted(pools, key=lambda each: each.pool):
        accelerator_s = 60.0 * seen.accelerators
        row = {
            "hour": minute // 60,
            "pool": seen.pool,
            "minutes": 1,
            "last_minute": minute,
            "replica_seconds": 60.0 * seen.replicas,
            "accelerator_seconds": accelerator_s,
            "cost": accelerator_s * seen.price_per_accelerator_hour / 3600,
        }
        connection.execute(added, row)


def delete_before(connection: Connection, hour: int, now_unix_s: float) -> None:
    connection.execute(delete(usage).where(usage.c.hour < hour))
    connection.execute(delete(capacity).where(capacity.c.hour < hour))
    connection.execute(delete(usage_sources).where(usage_sources.c.told_unix_s < now_unix_s - _SOURCE_KEPT_S))


def sums(connection: Connection, wanted: UsageFilter, by: Sequence[Dimension], limit: int) -> list[dict[str, Any]]:
    """Return the summed usage that matches `wanted`, one row per combination of the dimensions `by`, sorted by them, at
    most `limit`. `hour` and `day` are the Unix second at which they begin."""
    named = [_DIMENSIONS[dimension].label(dimension) for dimension in by]
    query = select(*named, *_summed()).where(*wanted.conditions())
    if by:
        query = query.group_by(*(_DIMENSIONS[dimension] for dimension in by)).order_by(*named)
    rows = connection.execute(query.limit(limit)).mappings()
    return [{name: _number(value) for name, value in row.items()} for row in rows if row["requests"] is not None]


def capacity_of(connection: Connection, since_hour: int, until_hour: int) -> dict[str, PoolCapacity]:
    counted = [func.sum(capacity.c[name]) for name in ("minutes", "replica_seconds", "accelerator_seconds", "cost")]
    query = (
        select(capacity.c.pool, *counted)
        .where(capacity.c.hour >= since_hour, capacity.c.hour < until_hour)
        .group_by(capacity.c.pool)
    )
    return {
        pool: PoolCapacity(int(minutes), float(replica_s), float(accelerator_s), float(cost))
        for pool, minutes, replica_s, accelerator_s, cost in connection.execute(query)
    }


def last_told_unix_s(connection: Connection) -> float | None:
    told: float | None = connection.scalar(select(func.max(usage_sources.c.told_unix_s)))
    return told


_DIMENSIONS: dict[Dimension, ColumnElement[Any]] = {
    "tenant": usage.c.tenant,
    "model": usage.c.model,
    "version": usage.c.version,
    "pool": usage.c.pool,
    "class": usage.c.service_class,
    "hour": usage.c.hour * 3600,
    "day": (usage.c.hour - usage.c.hour % HOURS_PER_DAY) * 3600,
}


def _summed() -> list[ColumnElement[Any]]:
    return [func.sum(usage.c[name]).label(name) for name in MEASURES]


def _number(value: Any) -> Any:
    """Return the value with Postgres's sums of integers, which are decimals, as int."""
    return value if isinstance(value, str | int | float) else int(value)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY_FIELDS)


def _insert(connection: Connection, table: Any) -> Any:
    """Return an insert of the database's dialect, which supports upserts."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    insert: Insert = dialect.insert(table)
    return insert
