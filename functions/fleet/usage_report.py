"""Usage reports: what gateways tell the registry of their requests, in sums by hour, tenant and model.

    POST /internal/v1/usage        one report; its answer means that it is counted, now or before

A report is known by who made it and its number: `source` is made once by each gateway process, and its reports are
numbered from 1. A source's reports are delivered in their order, so the registry keeps one number of each source, takes
what is above it, and answers what is not as done. A report never changes once it was sent.

Tokens are those that tenants are charged for. What engines did besides, for attempts that failed or lost against
another one, is the platform's: `lost_*`, estimated where nobody counted it.

Neighbours: `functions.gateway.usage` makes them, `functions.registry.sql.usage` keeps them.
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
    """Sums of one hour; the first six fields are the key, the others only grow."""

    hour: Annotated[int, msgspec.Meta(ge=0, lt=10**7)]  # in which the requests ended: Unix seconds / 3600
    tenant: _Name
    model: _Name  # empty: of too many models at once to be told apart
    version: _Name
    pool: _Name  # that answered
    service_class: ServiceClass

    requests: _Count = 0  # that an engine was chosen for, however they ended
    failed: _Count = 0  # of these: with an error of ours or of the engine's (5xx)
    left: _Count = 0  # of these: the client left
    prompt_tokens: _Count = 0
    cached_tokens: _Count = 0  # of the prompt's
    completion_tokens: _Count = 0
    kv_token_seconds: _Amount = 0.0
    accelerator_seconds: _Amount = 0.0
    cost: _Amount = 0.0  # of these, at the pool's price then

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
    """The bytes are no report."""


def key_of(row: UsageRow) -> UsageKey:
    return (row.hour, row.tenant, row.model, row.version, row.pool, row.service_class)


def merge(into: dict[UsageKey, UsageRow], rows: Iterable[UsageRow]) -> None:
    """Add each row to the one of its key; rows of `into` change, those that are given do not."""
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
    """ReportInvalid says what is wrong."""
    try:
        return msgspec.json.decode(document, type=UsageReport)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReportInvalid(str(error)) from error
