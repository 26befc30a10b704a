"""Spans of a process's own work, and events, for an OpenTelemetry collector; requests' spans come from trace files.

    span, event ──► a deque in memory ──► each second, by a thread ──► POST /v1/traces, /v1/logs

An event is a log record with a name (OTLP's form of events). Callers never wait: beyond `waiting_max` the oldest
records are dropped and counted. Records that an unavailable collector did not accept are sent again. A record may
arrive twice after a lost response: a span with the same ids, an event with the same `shoal.event_id`.

Without an endpoint there is no sender: callers hold None, and create no records. `otlp` has the encoding and the
collector.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import xxhash

from functions.telemetry import otlp
from functions.telemetry.trace_shipping import PieceRefused, ReceiverAway

_log = logging.getLogger(__name__)
WAITING_MAX = 2048  # about 1 MB
BATCH = 512
_EVERY_S, _RETRY_MAX_S = 1.0, 30.0
_WORDS_MAX_CHARS = 1000
_SEVERITY = {"info": (9, "INFO"), "warning": (13, "WARN"), "error": (17, "ERROR")}

Attributes = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened at `at_unix_s`. Its name is from a small fixed set: `shoal.push`, `shoal.rollout`."""

    name: str
    at_unix_s: float
    words: str
    attributes: Attributes
    severity: Literal["info", "warning", "error"] = "info"


class OtlpSettings(Protocol):
    @property
    def otlp_endpoint(self) -> str | None: ...

    @property
    def otlp_headers_file(self) -> Path | None: ...

    @property
    def otlp_ca_file(self) -> Path | None: ...


class OtlpSender:
    """Queue and send records. Any thread may call `span` and `event`; they cost an append. Its thread runs from
    `start` to `close`."""

    def __init__(
        self, collector: otlp.Collector, service: str, instance: str, *, waiting_max: int = WAITING_MAX
    ) -> None:
        self.dropped_total = 0  # records that were never delivered
        self.sent_total = 0
        self._collector = collector
        self._service, self._instance = service, instance
        self._waiting_max = waiting_max
        self._spans: deque[dict[str, Any]] = deque()
        self._events: deque[dict[str, Any]] = deque()
        self._stop = threading.Event()
        self._is_away = False
        self._thread = threading.Thread(target=self._send_until_stopped, name="otlp", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, within_s: float = 2.0) -> None:
        """Stop the thread, which sends once more if that ends in `within_s`; records that still wait are lost."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(within_s)

    def span(
        self,
        name: str,
        ids: tuple[str, str],
        unix_s: tuple[float, float],
        attributes: Attributes,
        *,
        failed: bool = False,
    ) -> None:
        """Queue a span. `ids`: trace and span, hexadecimal; `unix_s`: start and end in Unix seconds; `failed` gives it
        the error status."""
        made = otlp.span(ids, name, (round(unix_s[0] * 1e9), round(unix_s[1] * 1e9)), _bounded(attributes))
        if failed:
            made["status"] = {"code": otlp.ERROR_CODE}
        self._put(self._spans, made)

    def event(self, event: SpanEvent) -> None:
        self._put(self._events, _record(event))

    def send(self) -> None:
        """Send all waiting records; raises ReceiverAway, and records that were not accepted remain queued."""
        self._send_all(self._spans, "traces", lambda some: otlp.document(self._service, self._instance, some))
        self._send_all(self._events, "logs", lambda some: otlp.logs_document(self._service, self._instance, some))

    def _put(self, queue: deque[dict[str, Any]], record: dict[str, Any]) -> None:
        queue.append(record)
        if len(queue) > self._waiting_max:
            _popped(queue)
            self.dropped_total += 1

    def _send_all(
        self, queue: deque[dict[str, Any]], signal: otlp.Signal, encode: Callable[[list[dict[str, Any]]], bytes]
    ) -> None:
        while batch := [record for _ in range(BATCH) if (record := _popped(queue)) is not None]:
            try:
                self._collector.send(encode(batch), signal)
            except ReceiverAway:
                queue.extendleft(reversed(batch))
                while len(queue) > self._waiting_max:
                    _popped(queue)
                    self.dropped_total += 1
                raise
            except PieceRefused as error:
                self.dropped_total += len(batch)
                _log.warning("%d records for the collector are lost: %s", len(batch), error)
            else:
                self.sent_total += len(batch)

    def _send_until_stopped(self) -> None:
        wait_s = _EVERY_S
        while not self._stop.wait(wait_s):
            wait_s = _EVERY_S if self._send_once() else min(_RETRY_MAX_S, 2 * wait_s)
        self._send_once()
        self._collector.close()

    def _send_once(self) -> bool:
        try:
            self.send()
        except ReceiverAway as error:
            if not self._is_away:
                _log.warning("spans and events wait in memory: %s", error)
            self._is_away = True
            return False
        if self._is_away:
            _log.info("spans and events are delivered again; %d were dropped so far", self.dropped_total)
        self._is_away = False
        return True


def sender_of(settings: OtlpSettings, service: str, instance: str) -> OtlpSender | None:
    """Return a sender that is not started; None without an endpoint. Raises OSError and ssl.SSLError if its files
    cannot be read."""
    if not settings.otlp_endpoint:
        return None
    collector = otlp.Collector(
        settings.otlp_endpoint, otlp.headers_of(settings.otlp_headers_file), settings.otlp_ca_file
    )
    return OtlpSender(collector, service, instance)


def _record(event: SpanEvent) -> dict[str, Any]:
    number, text = _SEVERITY[event.severity]
    at_ns = str(round(event.at_unix_s * 1e9))
    attributes = _bounded(event.attributes)
    told = f"{event.name} {at_ns} {sorted(attributes.items())}"
    own = {"shoal.event_id": xxhash.xxh3_128_hexdigest(told.encode())}
    return {
        "timeUnixNano": at_ns,
        "observedTimeUnixNano": at_ns,
        "severityNumber": number,
        "severityText": text,
        "eventName": event.name,
        "body": {"stringValue": event.words[:_WORDS_MAX_CHARS]},
        "attributes": otlp.attributes_of(attributes | own),
    }


def _bounded(attributes: Attributes) -> dict[str, str | int | float]:
    return {name: value[:_WORDS_MAX_CHARS] if isinstance(value, str) else value for name, value in attributes.items()}


def _popped(queue: deque[dict[str, Any]]) -> dict[str, Any] | None:
    try:
        return queue.popleft()
    except IndexError:
        return None  # another thread has just removed it
