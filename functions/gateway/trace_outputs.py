"""Outputs of request traces by the settings: memory, files, and from the files a store and a collector.

    a request's end ──► the sink's memory ──► files (TRACE_DIR) ──► the store (TRACE_STORE_URL)
                                                                ──► a collector, as spans (OTLP_ENDPOINT)

Each arrow is a thread other than the event loop's. Lost rows are counted by reason.
"""

import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from functions.gateway.listeners import StartFailed
from functions.gateway.settings import GatewaySettings
from functions.telemetry.trace_shipping import Receiver, Shipping
from functions.telemetry.trace_sink import TraceSink


class TraceOutputs(Collector):
    """Sink and receivers of traces. Raises StartFailed if settings contradict each other."""

    def __init__(self, settings: GatewaySettings, gateway_id: str) -> None:
        self._shippings = _shippings(settings, gateway_id)
        self.sink = TraceSink(
            settings.trace_dir,
            time.time,
            max_bytes=settings.trace_max_bytes,
            sync_every_s=settings.trace_sync_s,
            before_removal=self._count_lost,
        )

    def start(self) -> None:
        self.sink.start()
        for shipping in self._shippings.values():
            shipping.start()

    def close(self) -> None:
        """Close the sink, then all shippings, so that rows in the sink's files can still be sent."""
        self.sink.close()
        for shipping in self._shippings.values():
            shipping.close()

    def _count_lost(self, path: Path) -> None:
        for shipping in self._shippings.values():
            shipping.count_lost(path)

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily("shoal_trace_rows_spooled", "Rows written to files.", self.sink.spooled_total)
        yield GaugeMetricFamily("shoal_trace_rows_waiting", "Rows not in a file yet.", self.sink.waiting_rows)
        written = CounterMetricFamily("shoal_trace_rows_written", "Rows that a receiver has.", labels=["receiver"])
        dropped = CounterMetricFamily(
            "shoal_trace_rows_dropped",
            "Rows that are lost: memory (the disk was too slow or full), spool (no room left for what was not sent), "
            "torn (half a line of a killed process), refused (by the receiver).",
            labels=["receiver", "reason"],
        )
        dropped.add_metric(["files", "memory"], self.sink.dropped_total)
        waiting = GaugeMetricFamily(
            "shoal_trace_spool_waiting_bytes",
            "Bytes of trace files that a receiver has yet to get; 0 if another process sends this gateway's files.",
            labels=["receiver"],
        )
        up = GaugeMetricFamily("shoal_trace_receiver_up", "0 while the receiver accepts nothing.", labels=["receiver"])
        for receiver, shipping in self._shippings.items():
            written.add_metric([receiver], shipping.written_total)
            for reason, rows in shipping.dropped_total.items():
                dropped.add_metric([receiver, reason], rows)
            waiting.add_metric([receiver], shipping.waiting_bytes)
            up.add_metric([receiver], float(not shipping.is_away))
        yield from (written, dropped, waiting, up)


def _shippings(settings: GatewaySettings, gateway_id: str) -> dict[str, Shipping]:
    """Return the shipping to each configured receiver (`store`, `otlp`), whose libraries are imported only then.

    Raise StartFailed if there is a receiver and no trace directory.
    """
    if settings.trace_store_url is None and settings.otlp_endpoint is None:
        return {}
    if settings.trace_dir is None:
        raise StartFailed(
            "TRACE_STORE_URL and OTLP_ENDPOINT need SHOAL_GATEWAY_TRACE_DIR, where traces wait to be sent"
        )
    found = {}
    if settings.trace_store_url is not None:
        found["store"] = Shipping(settings.trace_dir, "store", _store_receiver(settings, settings.trace_store_url))
    if settings.otlp_endpoint is not None:
        from functions.telemetry import otlp

        collector = otlp.Collector(
            settings.otlp_endpoint, otlp.headers_of(settings.otlp_headers_file), settings.otlp_ca_file
        )
        receiver = otlp.OtlpReceiver(collector, "shoal-gateway", gateway_id)
        found["otlp"] = Shipping(settings.trace_dir, "otlp", receiver, piece_bytes=otlp.PIECE_BYTES)
    return found


def _store_receiver(settings: GatewaySettings, url: str) -> Receiver:
    from functions.telemetry.store.client import StoreAddress, StoreReceiver, TraceStore

    file = settings.trace_store_password_file
    password = file.read_text().strip() if file is not None else ""
    address = StoreAddress(url, settings.trace_store_user, password, settings.trace_store_ca_file)
    return StoreReceiver(TraceStore(address), settings.trace_retention_days)
