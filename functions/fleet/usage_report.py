"""Usage reports of gateways to the registry: sums by hour, tenant and model.

    POST /internal/v1/usage        one report; a success response means that it is counted, now or before

A report is identified by its source and its number. Each gateway process creates a `source` once and numbers its
reports from 1. The reports of a source are delivered in order. The registry stores the last number of each source,
counts reports above it, and acknowledges the others as done. A report never changes after it was sent.

Token counts are those that tenants are charged for. Engine work for attempts that failed or lost against another one
is charged to the platform: `lost_*`, estimated if there is no count.

Neighbours: `functions.gateway.usage` creates reports, `functions.registry.sql.usage` stores them.
"""

from collections.abc import Iterable
from typing import Annotated

import msgspec

from functions.api.snapshot import ServiceClass

USAGE_PATH = "/internal/v1/usage"
REPORT_MAX_BYTES = 16 * 1024 * 1024
REPORT_ROWS = 10_000  # at most; about 4 MB
SECONDS_PER_HOUR = 3600

_Name = Annotated[str, msgspec.Meta(max_length=256)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
_Amount = Annotated[float, msgspec.Meta(ge=0.0, lt=1e15)]
Source = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]

UsageKey = tuple[int, str, str, str, str, str]  # hour, tenant, model, version, pool, class


class UsageRow(msgspec.Struct, gc=False):
    """Sums of one hour. The first six fields are the key; the others only grow."""

    hour: Annotated[int, msgspec.Meta(ge=0, lt=10**7)]  # hour in which the requests ended: Unix seconds / 3600
    tenant: _Name
    model: _Name  # empty if there are too many models to count separately
    version: _Name
    pool: _Name  # pool that answered
    service_class: ServiceClass

    requests: _Count = 0  # requests for which an engine was chosen, however they ended
    failed: _Count = 0  # part of `requests`: ended with an error of the gateway or the engine (5xx)
    left: _Count = 0  # part of `requests`: the client disconnected
    prompt_tokens: _Count = 0
    cached_tokens: _Count = 0  # part of `prompt_tokens`
    completion_tokens: _Count = 0
    kv_token_seconds: _Amount = 0.0
    accelerator_seconds: _Amount = 0.0
    cost: _Amount = 0.0  # accelerator seconds at the pool's price at the time

    lost_attempts: _Count = 0
    lost_prompt_tokens: _Count = 0
    lost_completion_tokens: _Count = 0
    lost_accelerator_seconds: _Amount = 0.0
    lost_cost: _Amount = 0.0


KEY_FIELDS = UsageRow.__struct_fields__[:6]
MEASURES = UsageRow.__struct_fields__[6:]


class UsageReport(msgspec.Struct, frozen=True):
    source: Source
    sequence: Annotated[int, msgspec.Meta(ge=1, lt=2**53)]
    gateway_id: _Name
    rows: Annotated[tuple[UsageRow, ...], msgspec.Meta(max_length=REPORT_ROWS)]


class ReportInvalid(ValueError):
    """The bytes are not a usage report."""


def key_of(row: UsageRow) -> UsageKey:
    return (row.hour, row.tenant, row.model, row.version, row.pool, row.service_class)


def merge(into: dict[UsageKey, UsageRow], rows: Iterable[UsageRow]) -> None:
    """Add each of `rows` to the row of `into` with its key, or store a copy of it there. `rows` do not change."""
    for row in rows:
        key = key_of(row)
        known = into.get(key)
        if known is None:
            into[key] = msgspec.structs.replace(row)
        else:
            for name in MEASURES:
                setattr(known, name, getattr(known, name) + getattr(row, name))


def encode(report: UsageReport) -> bytes:
    return msgspec.json.encode(report)


def decode(document: bytes) -> UsageReport:
    """Decode a gateway's usage report; ReportInvalid says what is wrong."""
    try:
        return msgspec.json.decode(document, type=UsageReport)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReportInvalid(str(error)) from error
