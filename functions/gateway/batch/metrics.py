"""What Prometheus sees of batches: statuses and outcomes only, no tenant and no id."""

from collections.abc import Callable
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

from functions.decisions.batch.record import Status


class BatchMetrics:
    def __init__(self, registry: CollectorRegistry, running: Callable[[], int], in_flight: Callable[[], int]) -> None:
        self._ended = Counter("shoal_batches", "Batches by how they ended", ["status"], registry=registry)
        self._lines = Counter("shoal_batch_lines", "Lines by their result", ["outcome"], registry=registry)
        self._again = Counter(
            "shoal_batch_lines_asked_again", "Times that a line was told to wait, or failed and was retried",
            registry=registry,
        )  # fmt: skip
        self._taken = Counter("shoal_batch_claims", "Batches taken up by this gateway", registry=registry)
        Gauge("shoal_batches_running", "Batches this gateway works on", registry=registry).set_function(running)
        Gauge("shoal_batch_lines_in_flight", "Their lines under way", registry=registry).set_function(in_flight)

    def ended(self, status: Status) -> None:
        self._ended.labels(status).inc()

    def line(self, outcome: Literal["completed", "failed", "expired"]) -> None:
        self._lines.labels(outcome).inc()

    def asked_again(self) -> None:
        self._again.inc()

    def taken(self) -> None:
        self._taken.inc()
