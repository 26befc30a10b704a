"""Tables of the trace store, and the statements that upgrade an older store.

`shoal.requests` has the columns of `TraceRow` in their order. A column that is added there is added here by the next
gateway that starts. Statements that change more than columns are in `MIGRATIONS`, numbered; each may run twice.

Rows are deduplicated in three ways. A repeated piece has a token that the table knows (its last
DEDUPLICATED_PIECES). Rows with an equal sorting key are merged. Queries use FINAL, so the time of the merge does
not matter. Hourly totals rely on the first way alone, since they are added up on insertion.

The sorting key begins with the hour: a query for the last hour reads one hour, with or without a tenant. A request
is found by its id with a bloom filter for every 32,768 rows, and by the days on which it may have arrived.
"""

import types
from typing import Any, Union, get_args, get_origin

import msgspec

from functions.telemetry.trace_row import TraceRow

DEDUPLICATED_PIECES = 10_000
HOURLY_DAYS = 400  # totals are small
_TYPES = {str: "String", float: "Float64", int: "Int64", bool: "Bool"}
# Columns with few distinct values, which are stored by number.
_FEW = frozenset(
    {"tenant_id", "key_id", "model_id", "version", "artifact_digest", "base_model", "adapter_id", "pool", "replica_id"}
    | {"class", "route_reason", "finish_reason", "degraded_from", "error"}
)


def columns() -> dict[str, str]:
    """Return ClickHouse's type of each column of the requests table by name, in the table's order."""
    return {field.encode_name: _type(field.encode_name, field.type) for field in msgspec.structs.fields(TraceRow)}


def _type(name: str, hint: Any) -> str:
    if name == "ts":
        return "DateTime64(6, 'UTC')"
    if name in _FEW:
        return "LowCardinality(String)"
    if get_origin(hint) is dict:
        return "String"  # JSON, unchanged
    if get_origin(hint) in (Union, types.UnionType):
        inner = next(each for each in get_args(hint) if each is not type(None))
        return f"Nullable({_TYPES[inner]})"
    return _TYPES[hint]


def table(retention_days: int) -> str:
    described = ",\n  ".join(f"`{name}` {kind}" for name, kind in columns().items())
    return f"""CREATE TABLE IF NOT EXISTS shoal.requests (
  {described},
  INDEX by_request_id request_id TYPE bloom_filter(0.001) GRANULARITY 4,
  INDEX by_trace_id trace_id TYPE bloom_filter(0.001) GRANULARITY 4
) ENGINE = ReplacingMergeTree
PARTITION BY toDate(ts)
ORDER BY (toStartOfHour(ts), tenant_id, ts, request_id)
TTL {_ttl(retention_days)}
SETTINGS non_replicated_deduplication_window = {DEDUPLICATED_PIECES}, ttl_only_drop_parts = 1"""


def _ttl(retention_days: int) -> str:
    return f"toDateTime(ts) + toIntervalDay({retention_days})"


HOURLY = f"""CREATE TABLE IF NOT EXISTS shoal.requests_hourly (
  hour DateTime('UTC'),
  tenant_id LowCardinality(String),
  model_id LowCardinality(String),
  pool LowCardinality(String),
  class LowCardinality(String),
  requests SimpleAggregateFunction(sum, UInt64),
  errors SimpleAggregateFunction(sum, UInt64),
  prompt_tokens SimpleAggregateFunction(sum, Int64),
  cached_tokens SimpleAggregateFunction(sum, Int64),
  completion_tokens SimpleAggregateFunction(sum, Int64),
  kv_token_seconds SimpleAggregateFunction(sum, Float64),
  gpu_seconds SimpleAggregateFunction(sum, Float64),
  first_token_ms AggregateFunction(quantilesTDigest(0.5, 0.95, 0.99), Nullable(Float64)),
  total_ms AggregateFunction(quantilesTDigest(0.5, 0.95, 0.99), Float64)
) ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMM(hour)
ORDER BY (hour, tenant_id, model_id, pool, class)
TTL hour + toIntervalDay({HOURLY_DAYS})
SETTINGS non_replicated_deduplication_window = {DEDUPLICATED_PIECES}"""

HOURLY_VIEW = """CREATE MATERIALIZED VIEW IF NOT EXISTS shoal.requests_to_hourly TO shoal.requests_hourly AS
SELECT
  toStartOfHour(toDateTime(ts, 'UTC')) AS hour, tenant_id, model_id, pool, class,
  count() AS requests,
  countIf(status >= 400) AS errors,
  sum(ifNull(r.prompt_tokens, 0)) AS prompt_tokens,
  sum(ifNull(r.cached_tokens, 0)) AS cached_tokens,
  sum(ifNull(r.completion_tokens, 0)) AS completion_tokens,
  sum(r.kv_token_seconds) AS kv_token_seconds,
  sum(r.gpu_seconds) AS gpu_seconds,
  quantilesTDigestState(0.5, 0.95, 0.99)(r.first_token_ms) AS first_token_ms,
  quantilesTDigestState(0.5, 0.95, 0.99)(r.total_ms) AS total_ms
FROM shoal.requests AS r
GROUP BY hour, tenant_id, model_id, pool, class"""

MIGRATIONS: dict[int, tuple[str, ...]] = {1: (HOURLY, HOURLY_VIEW)}
_LEDGER = (
    "CREATE TABLE IF NOT EXISTS shoal.migrations (number UInt32, done DateTime DEFAULT now()) "
    "ENGINE = ReplacingMergeTree ORDER BY number"
)


def first_statements(retention_days: int) -> list[str]:
    """Return the statements that create database, ledger and table if they are missing, for any store, new or old."""
    return ["CREATE DATABASE IF NOT EXISTS shoal", _LEDGER, table(retention_days)]


def pending(done: set[int]) -> list[str]:
    """Return the statements of migrations that the store lacks (`done` are those it has), each followed by the
    statement that records it."""
    return [
        statement
        for number, statements in sorted(MIGRATIONS.items())
        if number not in done
        for statement in (*statements, f"INSERT INTO shoal.migrations (number) SELECT {number}")
    ]


def catching_up(present: set[str], definition: str, retention_days: int) -> list[str]:
    """Return the statements that complete an older gateway's table: missing columns (`present` are its own), and a
    retention that differs from its `definition`."""
    missing = [(name, kind) for name, kind in columns().items() if name not in present]
    added = [f"ALTER TABLE shoal.requests ADD COLUMN IF NOT EXISTS `{name}` {kind}" for name, kind in missing]
    if f"toIntervalDay({retention_days})" not in definition:
        added.append(f"ALTER TABLE shoal.requests MODIFY TTL {_ttl(retention_days)}")
    return added
