"""Trace rows, one per request: the rows of `shoal.requests` in ClickHouse, and the data that `shoal trace` shows.

The columns and their order are fixed, as a table's. A quantity that a request never reached is null, such as the
first token or the replica. Prompts and completions are never included, and a session only as a hash.

An added column needs a default here, because rows on disk or from an older gateway lack it. The table follows by
itself (`store.schema`).

Neighbours: `functions.gateway.tracing` fills rows in; `trace_sink` queues them; `trace_files` writes them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

PATTERN = "requests-*.ndjson"
LINE_MAX_BYTES = 64 * 1024  # a row is about 1 KB


class TraceRow(msgspec.Struct, gc=False, kw_only=True):
    """One request. Times are milliseconds, except `ts`: Unix seconds of the request's arrival."""

    ts: float
    request_id: str
    trace_id: str  # from the caller's `traceparent`; generated if there was none
    span_id: str = ""  # the gateway's own span, parent of the engine's; empty from an older gateway
    parent_span_id: str = ""  # from the caller's `traceparent`; empty if there was none
    tenant_id: str
    key_id: str
    model_id: str
    version: str
    artifact_digest: str
    base_model: str
    adapter_id: str  # the engine's name for it; empty if the base model answered
    pool: str
    replica_id: str  # the last replica tried; empty if there was none
    session_id: str  # hashed with the tenant; empty if the request has no session
    class_: str = msgspec.field(name="class")
    stream: bool
    attempt_count: int
    route_reason: str
    route_score: dict[str, Any]
    snapshot_epoch: int
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    auth_ms: float
    queue_ms: float  # in the admission queue, and for an adapter that had to be loaded
    route_ms: float | None  # up to the last attempt, including the time of failed ones
    connect_ms: float | None
    prefill_ms: float | None  # at the engine, up to the first token: its queue and the prompt
    first_token_ms: float | None  # since arrival
    inter_token_p50_ms: float | None
    inter_token_p99_ms: float | None
    decode_tokens: int  # counted from the stream's events
    total_ms: float
    kv_token_seconds: float
    gpu_seconds: float
    status: int
    finish_reason: str
    degraded_from: str
    error: str  # code of the final error, and the failures of its attempts


COLUMNS = tuple(field.encode_name for field in msgspec.structs.fields(TraceRow))

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(TraceRow)


class RowInvalid(ValueError):
    """The line is not a trace row."""


def encode(row: TraceRow) -> bytes:
    """Encode a row as one line of NDJSON, without the line end."""
    return _encoder.encode(row)


def decode(line: bytes) -> TraceRow:
    """Decode a line of NDJSON to a trace row; RowInvalid if it is none."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RowInvalid(str(error)) from error


def find(directory: Path, request_id: str) -> TraceRow | None:
    """Return the newest row of a request in the directory's trace files; None if there is none, RowInvalid if the line
    is malformed."""
    needle = b'"request_id":"' + request_id.encode() + b'"'
    for path in sorted(directory.glob(PATTERN), reverse=True):
        found = None
        for line in _lines(path):
            if needle in line:
                found = line
        if found is not None:
            return decode(found)
    return None


def rows(path: Path) -> Iterator[TraceRow]:
    """Yield the rows of one file, or of all files in a directory, oldest first; other lines are skipped."""
    for each in sorted(path.glob(PATTERN)) if path.is_dir() else [path]:
        for line in _lines(each):
            try:
                yield decode(line)
            except RowInvalid:
                continue  # the last line of a process that was killed


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while line := file.readline(LINE_MAX_BYTES):
                yield line
    except FileNotFoundError:
        return  # removed since it was listed
