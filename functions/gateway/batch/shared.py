"""Shared parts of a gateway's batches: services, limits, the store, and metrics.

Metrics have statuses and outcomes as labels, but no tenant and no id.
"""

import collections
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

from functions.decisions.batch.record import Status
from functions.gateway.batch.files.shelf import Shelf
from functions.gateway.batch.files.store import FileStore
from functions.gateway.batch.limits import BatchLimits
from functions.gateway.batch.log import BatchLog
from functions.gateway.services import RequestHandler, Services
from functions.gateway.tenant_limits import TenantShares
from functions.telemetry.repeats import Repeats


class BatchMetrics:
    def __init__(self, registry: CollectorRegistry, running: Callable[[], int], in_flight: Callable[[], int]) -> None:
        self._ended = Counter("shoal_batches", "Batches that are over, by final status", ["status"], registry=registry)
        self._lines = Counter("shoal_batch_lines", "Lines of batches, by result", ["outcome"], registry=registry)
        self._again = Counter(
            "shoal_batch_lines_asked_again", "Lines of batches sent again after a rejection or a failure",
            registry=registry,
        )  # fmt: skip
        self._taken = Counter("shoal_batch_claims", "Batches claimed by this gateway", registry=registry)
        Gauge("shoal_batches_running", "Batches that this gateway runs", registry=registry).set_function(running)
        Gauge("shoal_batch_lines_in_flight", "Lines of batches in flight", registry=registry).set_function(in_flight)

    def count_ended(self, status: Status) -> None:
        self._ended.labels(status).inc()

    def count_line(self, outcome: Literal["completed", "failed", "expired"]) -> None:
        self._lines.labels(outcome).inc()

    def count_retry(self) -> None:
        self._again.inc()

    def count_claim(self) -> None:
        self._taken.inc()


@dataclass(frozen=True, slots=True)
class BatchServices:
    services: Services
    handle: RequestHandler  # handles the request of each line
    limits: BatchLimits
    store: FileStore
    shelf: Shelf
    log: BatchLog
    slots: TenantShares  # lines in flight
    bodies: TenantShares  # bytes of lines that wait for their answer
    answers: TenantShares  # bytes reserved for answers of lines in flight
    metrics: BatchMetrics
    uniform: Callable[[], float]  # in [0, 1)
    open_batches: collections.Counter[str] = field(
        default_factory=collections.Counter
    )  # by tenant, at all gateways, as of the last scan
    repeats: Repeats = field(default_factory=Repeats)  # errors of the store that were logged
