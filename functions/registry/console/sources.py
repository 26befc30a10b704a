"""Data sources of the console besides the database: Prometheus, trace store, drill reports, the controller's report.

Each of them may be missing or unavailable independently. Built by the composition root; owned by one event loop.
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
_UNSHOWN = frozenset({"recorded"})  # series for tests of the alert rules, one or two megabytes, not for readers
_FIELDS_MAX = 60
_ITEMS_MAX = 60
_WORDS_MAX_CHARS = 1000
_DEPTH_MAX = 3


@dataclass(slots=True)
class BranchBoard:
    report: BranchReport | None = None
    told_unix_s: float = 0.0

    def set_report(self, report: BranchReport, now_unix_s: float) -> None:
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
    """Make sources for a registry that uses only its own database and bus."""
    samples = Samples()
    return ConsoleSources(samples, PoolSeries(samples, None, clock, wall_clock), None, Traces(None), None)


def sources_from(settings: RegistrySettings, trace_store_password: str | None) -> ConsoleSources:
    """Make the sources without contacting them. Raises OSError if a CA file cannot be read."""
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
    """Return the JSON reports that `shoal drill` wrote to the fleet's state, newest first, limited in number and
    size. Blocks. Each file is one report. A file that is not a valid report (too large, no JSON, no object) is listed
    by name with the reason, so that an unreadable report does not look like a drill that never ran. On a cluster
    there is no such folder, and the list is empty."""
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
    """Return the value cut to the size that a page can show: shorter lists, objects and texts, and "…" for what is
    nested more than `depth` levels deep."""
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
