"""OpenTelemetry over HTTP: spans as OTLP/JSON, built from trace rows by a background thread.

    a row ──► `shoal.request` (server) ──► auth, queue, route, connect, prefill, decode

The encoding is our own: six dictionaries a request and one JSON text for hundreds of them. The SDK would build,
check and batch each span in the gateway's process (docs/decisions/0045). Span names follow the conventions for
generative AI if they define one. A span's id is derived from its request's, so a repeated batch has the same spans.

Neighbours: `trace_shipping` delivers the rows and retains them while no collector answers; `otlp_sender` sends the
spans and events of other processes.
"""

import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import httpx
import orjson
import xxhash

from functions.telemetry.trace_parts import parts
from functions.telemetry.trace_row import RowInvalid, TraceRow, decode
from functions.telemetry.trace_shipping import PieceRefused, ReceiverAway

PIECE_BYTES = 256 * 1024  # size of the rows, which become about 1 MB of spans
_SERVER, _INTERNAL = 2, 1
ERROR_CODE = 2
_REFUSED = frozenset({400, 413, 422})
_TIMEOUT_S = 10.0
_SCOPE = {"name": "shoal"}

Span = dict[str, Any]
Signal = Literal["traces", "logs"]


def spans(row: TraceRow) -> list[Span]:
    """Return the OTLP spans of the request and of its parts; none if its caller did not sample it."""
    if not row.span_id or not row.trace_id:
        return []
    start_ns = int(row.ts * 1e9)
    ids, ns = (row.trace_id, row.span_id), (start_ns, start_ns + _ns(row.total_ms))
    own = span(ids, "shoal.request", ns, _attributes(row))
    own["kind"] = _SERVER
    if row.parent_span_id:
        own["parentSpanId"] = row.parent_span_id
    if row.status >= 500:
        own["status"] = {"code": ERROR_CODE, "message": row.error}
    made = [own]
    for part in parts(row):
        at_ns = start_ns + _ns(part.start_ms)
        ids, ns = (row.trace_id, _child_id(row.span_id, part.name)), (at_ns, at_ns + _ns(part.ms))
        child = span(ids, part.name, ns, {})
        child["parentSpanId"] = row.span_id
        made.append(child)
    return made


def span(ids: tuple[str, str], name: str, ns: tuple[int, int], attributes: Mapping[str, str | int | float]) -> Span:
    """Build an OTLP span. `ids`: trace and span; `ns`: start and end, Unix nanoseconds."""
    return {
        "traceId": ids[0],
        "spanId": ids[1],
        "name": name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(ns[0]),
        "endTimeUnixNano": str(ns[1]),
        "attributes": attributes_of(attributes),
    }


def document(service: str, instance: str, some: Sequence[Span]) -> bytes:
    """Return spans of a service instance as an encoded ExportTraceServiceRequest."""
    scoped = [{"scope": _SCOPE, "spans": list(some)}]
    return orjson.dumps({"resourceSpans": [{"resource": _resource(service, instance), "scopeSpans": scoped}]})


def logs_document(service: str, instance: str, records: Sequence[dict[str, Any]]) -> bytes:
    """Return log records of a service instance as an encoded ExportLogsServiceRequest."""
    scoped = [{"scope": _SCOPE, "logRecords": list(records)}]
    return orjson.dumps({"resourceLogs": [{"resource": _resource(service, instance), "scopeLogs": scoped}]})


def attributes_of(some: Mapping[str, str | int | float]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in some.items()]


def _resource(service: str, instance: str) -> dict[str, Any]:
    own = {"service.name": service, "service.namespace": "shoal", "service.instance.id": instance}
    return {"attributes": attributes_of(own)}


def _attributes(row: TraceRow) -> dict[str, str | int | float]:
    found: dict[str, str | int | float | None] = {
        "gen_ai.request.model": row.degraded_from or f"{row.model_id}@{row.version}",
        "gen_ai.response.model": f"{row.model_id}@{row.version}",
        "gen_ai.usage.input_tokens": row.prompt_tokens,
        "gen_ai.usage.output_tokens": row.completion_tokens,
        "gen_ai.response.finish_reasons": row.finish_reason,
        "http.response.status_code": row.status,
        "error.type": row.error,
        "shoal.request_id": row.request_id,
        "shoal.tenant": row.tenant_id,
        "shoal.class": row.class_,
        "shoal.pool": row.pool,
        "shoal.replica": row.replica_id,
        "shoal.route_reason": row.route_reason,
        "shoal.attempts": row.attempt_count,
        "shoal.cached_tokens": row.cached_tokens,
        "shoal.first_token_ms": row.first_token_ms,
    }
    return {name: value for name, value in found.items() if value is not None and value != ""}


def _value(value: str | int | float) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"doubleValue": value}


def _ns(ms: float) -> int:
    return round(ms * 1e6)


def _child_id(span_id: str, name: str) -> str:
    return xxhash.xxh3_64_hexdigest(f"{span_id}{name}".encode())


class Collector:
    """Client of an OTLP collector's POST /v1/traces and /v1/logs."""

    def __init__(self, endpoint: str, headers: Mapping[str, str], ca_file: Path | None = None) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._client = httpx.Client(
            headers={**headers, "content-type": "application/json"},
            verify=ssl.create_default_context(cafile=str(ca_file)) if ca_file else True,
            timeout=_TIMEOUT_S,
            trust_env=False,
        )

    def send(self, body: bytes, signal: Signal = "traces") -> None:
        """Send one encoded request; raises PieceRefused if the collector refuses its content, and ReceiverAway for any
        other failure."""
        url = f"{self._endpoint}/v1/{signal}"
        try:
            answer = self._client.post(url, content=body)
        except httpx.HTTPError as error:
            raise ReceiverAway(f"{url}: {error or type(error).__name__}") from error
        if answer.status_code in _REFUSED:
            raise PieceRefused(f"{url}: {answer.status_code} {answer.text[:200]}")
        if not answer.is_success:
            raise ReceiverAway(f"{url}: {answer.status_code} {answer.text[:200]}")

    def close(self) -> None:
        self._client.close()


class OtlpReceiver:
    """A collector as a receiver of trace files."""

    def __init__(self, collector: Collector, service: str, instance: str) -> None:
        self._collector = collector
        self._service = service
        self._instance = instance

    def receive(self, lines: bytes, name: str) -> None:
        some: list[Span] = []
        for line in lines.splitlines():
            try:
                some += spans(decode(line))
            except RowInvalid as error:
                if lines.count(b"\n") == 1:
                    raise PieceRefused(str(error)) from error
                continue  # the other receivers of the file count it
        if some:
            self._collector.send(document(self._service, self._instance, some))


def headers_of(path: Path | None) -> dict[str, str]:
    """Parse a file of `name: value` lines, such as a token that the collector requires; other lines are skipped, and
    None gives no headers."""
    if path is None:
        return {}
    pairs = (line.partition(":") for line in path.read_text().splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}
