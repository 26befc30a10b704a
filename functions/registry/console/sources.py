"""Sources of the console's routes besides the database: Prometheus, trace store, reports of drills, the controller.

Each may be missing or away, alone. Put together by the composition root; owned by one event loop.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from functions.fleet.branch_report import BranchReport
from functions.registry.console.prometheus import Prometheus, PrometheusAddress
from functions.registry.console.samples import Samples
from functions.registry.console.series import PoolSeries
from functions.registry.console.tenants import RecentUse
from functions.registry.console.traces import ANSWER_S, Traces
from functions.registry.settings import RegistrySettings
from functions.telemetry.store.client import StoreAddress, TraceStore


@dataclass(slots=True)
class BranchBoard:
    """What the controller said last."""

    report: BranchReport | None = None
    told_unix_s: float = 0.0

    def take(self, report: BranchReport, now_unix_s: float) -> None:
        self.report, self.told_unix_s = report, now_unix_s


@dataclass(frozen=True, slots=True)
class ConsoleSources:
    samples: Samples
    series: PoolSeries
    prometheus: Prometheus | None
    traces: Traces
    drills_dir: Path | None
    recent_use: RecentUse = field(default_factory=RecentUse)
    branch: BranchBoard = field(default_factory=BranchBoard)

    async def close(self) -> None:
        if self.prometheus is not None:
            await self.prometheus.close()
        await self.traces.close()


def no_sources(
    clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
) -> ConsoleSources:
    """A registry that knows nobody but its own database and bus."""
    samples = Samples()
    return ConsoleSources(samples, PoolSeries(samples, None, clock, wall_clock), None, Traces(None), None)


def sources_from(settings: RegistrySettings, trace_store_password: str | None) -> ConsoleSources:
    """Nobody is contacted yet. OSError where a file of an authority cannot be read."""
    prometheus = None
    if settings.prometheus_url is not None:
        address = PrometheusAddress(
            settings.prometheus_url, settings.prometheus_ca_file, settings.prometheus_token_file
        )
        prometheus = Prometheus(address)
    store = None
    if settings.trace_store_url is not None:
        store = TraceStore(
            StoreAddress(
                settings.trace_store_url,
                settings.trace_store_user,
                trace_store_password or "",
                settings.trace_store_ca_file,
            ),
            answer_s=ANSWER_S,
        )
    samples = Samples()
    series = PoolSeries(samples, prometheus, time.monotonic, time.time)
    return ConsoleSources(samples, series, prometheus, Traces(store), settings.drills_dir)
