"""Trace rows, one a request: what becomes of `shoal.requests` in ClickHouse, and what `shoal trace` shows.

The columns and their order are fixed (they are a table's). A quantity that a request never came to is null: no first
token, no replica. Prompts and completions are in none of them, and a session only as a hash.

A column that is added has a default here: rows that lie on a disk or come from an older gateway lack it. The table
follows by itself (`store.schema`).

Neighbours: `functions.gateway.tracing` fills rows in; `trace_sink` takes them away; `trace_files` writes them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

PATTERN = "requests-*.ndjson"
LINE_MAX_BYTES = 64 * 1024  # a row is about 1 KB


class TraceRow(msgspec.Struct, gc=False, kw_only=True):
    """Times are milliseconds, but for `ts`: Unix seconds of the request's arrival."""

    ts: float
    request_id: str
    trace_id: str  # of the caller's `traceparent`; made here where it sent none
    span_id: str = ""  # of the gateway's own span: the engine's parent; empty: of an older gateway
    parent_span_id: str = ""  # of the caller's `traceparent`; empty: it sent none
    tenant_id: str
    key_id: str
    model_id: str
    version: str
    artifact_digest: str
    base_model: str
    adapter_id: str  # the engine's name for it; empty: the base model answered
    pool: str
    replica_id: str  # the last one that was asked; empty: none was
    session_id: str  # hashed with the tenant; empty: the request belongs to none
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
    queue_ms: float  # in the waiting room, and for an adapter that had to be loaded
    route_ms: float | None  # up to the last attempt, so with what failed ones took
    connect_ms: float | None
    prefill_ms: float | None  # at the engine, up to the first token: its queue and the prompt
    first_token_ms: float | None  # since arrival
    inter_token_p50_ms: float | None
    inter_token_p99_ms: float | None
    decode_tokens: int  # as the stream's events were counted
    total_ms: float
    kv_token_seconds: float
    gpu_seconds: float
    status: int
    finish_reason: str
    degraded_from: str
    error: str  # the code of the error it ended with, and what the attempts failed of


COLUMNS = tuple(field.encode_name for field in msgspec.structs.fields(TraceRow))

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(TraceRow)


class RowInvalid(ValueError):
    """The line is no row of ours."""


def encode(row: TraceRow) -> bytes:
    """One line of NDJSON, without its end."""
    return _encoder.encode(row)


def decode(line: bytes) -> TraceRow:
    """The row of a line; RowInvalid."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RowInvalid(str(error)) from error


def find(directory: Path, request_id: str) -> TraceRow | None:
    """The newest row of a request; None where there is none."""
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
    """The rows of one file, or of all files of a directory, oldest first; lines that are none are left out."""
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
