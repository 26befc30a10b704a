"""Sources of the console's routes besides the database: Prometheus, trace store, reports of drills, the controller.

Each may be missing or away, alone. Put together by the composition root; owned by one event loop.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from functions.fleet.branch_report import BranchReport
from functions.registry.console.prometheus import Prometheus, PrometheusAddress
from functions.registry.console.samples import Samples
from functions.registry.console.series import PoolSeries
from functions.registry.console.tenants import RecentUse
from functions.registry.console.traces import ANSWER_S, Traces
from functions.registry.settings import RegistrySettings
from functions.telemetry.store.client import StoreAddress, TraceStore

_REPORTS_SHOWN = 50
_LOOKED_AT = 2000
_REPORT_MAX_BYTES = 1024 * 1024
_UNSHOWN = frozenset({"recorded"})  # series for tests of the rules: a megabyte or two of a page, for nobody
_FIELDS_MAX = 60
_ITEMS_MAX = 60
_WORDS_MAX_CHARS = 1000
_DEPTH_MAX = 3


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


def drill_reports(folder: Path | None) -> dict[str, Any]:
    """JSON files that `shoal drill` leaves in the fleet's state, the newest first, bounded in all. Blocks.

    A file is one report; what is not one (too large, no JSON, no object) is listed by its name with the reason, so that
    a report that cannot be read is not taken for a drill that was never made. On a cluster there is no such folder, and
    the list is empty.
    """
    files = list(islice(folder.rglob("*.json"), _LOOKED_AT)) if folder is not None and folder.is_dir() else []
    dated = sorted(((_changed_unix_s(file), file) for file in files), reverse=True)
    return {
        "object": "list",
        "configured": folder is not None,
        "data": [_report(file, changed_unix_s) for changed_unix_s, file in dated[:_REPORTS_SHOWN]],
        "total": len(files),
    }


def _report(file: Path, changed_unix_s: float) -> dict[str, Any]:
    about = {"file": file.name, "changed_unix_s": changed_unix_s}
    try:
        with file.open("rb") as opened:
            content = opened.read(_REPORT_MAX_BYTES + 1)
        if len(content) > _REPORT_MAX_BYTES:
            return {**about, "trouble": f"over {_REPORT_MAX_BYTES} bytes", "report": {}}
        report = orjson.loads(content)
    except (OSError, orjson.JSONDecodeError) as error:
        return {**about, "trouble": str(error)[:_WORDS_MAX_CHARS], "report": {}}
    if not isinstance(report, dict):
        return {**about, "trouble": "no report: not a JSON object", "report": {}}
    shown = {name: value for name, value in report.items() if name not in _UNSHOWN}
    return {**about, "trouble": "", "report": _bounded(shown, _DEPTH_MAX)}


def _bounded(value: Any, depth: int) -> Any:
    """What a page can show of it."""
    if isinstance(value, dict):
        kept = list(value.items())[:_FIELDS_MAX]
        return {str(name)[:200]: _bounded(inner, depth - 1) for name, inner in kept} if depth else "…"
    if isinstance(value, list):
        return [_bounded(inner, depth - 1) for inner in value[:_ITEMS_MAX]] if depth else "…"
    return value[:_WORDS_MAX_CHARS] if isinstance(value, str) else value


def _changed_unix_s(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
