"""`python -m studies scale`: the planned fleet in virtual time, region by region, with the loss of one.

The fleet's figures are the same on any machine; wall and CPU time, memory and slowdown are of this one. `--plot`
draws the regions over time.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from functions.cli.charts import ChartMark, Panel, PictureImpossible, Series, check, lines
from functions.cli.refused import CommandRefused
from functions.cli.terminal import TerminalReporter, make_console, make_error_console
from functions.decisions.quantile_sketch import QuantileSketch
from functions.simulator.fleet.engine_profile import PROFILES
from functions.simulator.fleet.token_gaps import TokenGaps
from studies.scale.run import RegionReport, run
from studies.scale.setting import Scale


def scale(wanted: Scale, *, processes: int, plot: Path | None, as_json: bool) -> None:
    if plot is not None:
        try:
            check(plot)
        except PictureImpossible as error:
            raise CommandRefused(str(error)) from error
    reporter = TerminalReporter(make_error_console())
    began_s = time.perf_counter()
    title = f"{wanted.requests_per_s:,.0f} requests/s on {wanted.replicas:,} replicas for {wanted.seconds:.0f} s"
    with reporter.step(f"Simulating {title}") as step:
        reports = run(wanted, processes, step.update)
    wall_s = time.perf_counter() - began_s
    if as_json:
        sys.stdout.write(orjson.dumps(_document(wanted, reports, wall_s), option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        _show(make_console(), wanted, reports, wall_s)
    if plot is not None:
        _draw(plot, title, wanted, reports)
        reporter.print_line(f"drawn to {plot}")


def wanted(*, profile: str | None, **figures: Any) -> Scale:
    """Return the scale; Refused if the figures make no fleet."""
    if profile is not None and profile not in PROFILES:
        raise CommandRefused(f"there is no profile {profile!r}: one of {', '.join(PROFILES)}")
    if profile is not None:
        figures["profile"] = PROFILES[profile]
    try:
        return Scale(**figures)
    except ValueError as error:
        raise CommandRefused(str(error)) from error


def _show(console: Console, wanted: Scale, reports: Sequence[RegionReport], wall_s: float) -> None:
    table = Table(
        "region", "asked", "served", "in time", "shed", "lost", "TTFT p50 ms", "p99 ms", "ITL p99 ms", "hits", "busy",
        box=None, pad_edge=False,
    )  # fmt: skip
    for column in table.columns[1:]:
        column.justify = "right"
    for report in reports:
        gone = f" (lost at {wanted.lost_at_s:.0f} s)" if report.region == wanted.lost_region else ""
        table.add_row(f"{report.region}{gone}", *_cells(report))
    table.add_row("all", *_cells(_together(reports)))
    console.print(table)
    events, cpu_s = sum(report.events for report in reports), sum(report.cpu_s for report in reports)
    asked = sum(report.asked for report in reports)
    memory = max(report.memory_bytes for report in reports)
    console.print(
        f"{wall_s:,.0f} s here for {wanted.seconds:.0f} s there ({wall_s / wanted.seconds:,.1f} times slower); "
        f"{cpu_s:,.0f} s of CPU, {1e6 * cpu_s / max(1, asked):,.0f} us a request, {events / max(1e-9, cpu_s):,.0f} "
        f"events/s of a core, at most {memory / 2**30:.1f} GiB a process"
    )


def _cells(report: RegionReport) -> list[str]:
    gap_s = report.gaps.quantile_s(0.99)
    return [
        f"{report.asked:,}",
        _percent(report.served, report.asked),
        _percent(report.in_time, report.asked),
        _percent(sum(report.shed.values()), report.asked),
        _percent(sum(report.lost.values()) + len(report.broken), report.asked),
        _ms(report.ttft.quantile(0.5)),
        _ms(report.ttft.quantile(0.99)),
        _ms(gap_s * 1000 if gap_s is not None else None),
        f"{report.hit_ratio:.1%}" if report.hit_ratio is not None else "-",
        f"{report.busy_ratio:.0%}",
    ]


def _together(reports: Sequence[RegionReport]) -> RegionReport:
    ttft, gaps = QuantileSketch(), TokenGaps()
    for report in reports:
        ttft.merge(report.ttft)
        gaps.merge(report.gaps)
    seconds = sum(report.seconds for report in reports)
    hits = [report for report in reports if report.hit_ratio is not None]
    asked = sum(report.asked for report in hits)
    return RegionReport(
        region=-1,
        asked=sum(report.asked for report in reports),
        served=sum(report.served for report in reports),
        in_time=sum(report.in_time for report in reports),
        shed={"all": sum(sum(report.shed.values()) for report in reports)},
        lost={"all": sum(sum(report.lost.values()) for report in reports)},
        ttft=ttft,
        gaps=gaps,
        busy_ratio=sum(report.busy_ratio * report.seconds for report in reports) / seconds,
        hit_ratio=sum((report.hit_ratio or 0.0) * report.asked for report in hits) / asked if asked else None,
        adapter_loads=sum(report.adapter_loads for report in reports),
        points=[],
        broken=[asked for report in reports for asked in report.broken],
        seconds=seconds,
        events=sum(report.events for report in reports),
        wall_s=0.0,
        cpu_s=sum(report.cpu_s for report in reports),
        memory_bytes=max(report.memory_bytes for report in reports),
    )


def _document(wanted: Scale, reports: Sequence[RegionReport], wall_s: float) -> dict[str, Any]:
    return {
        "setting": asdict(wanted),
        "regions": [_region(report) for report in reports],
        "all": _region(_together(reports)),
        "wall_s": wall_s,
        "slowdown": wall_s / wanted.seconds,
    }


def _region(report: RegionReport) -> dict[str, Any]:
    gap_s = report.gaps.quantile_s(0.99)
    return {
        "region": report.region,
        "asked": report.asked,
        "served": report.served,
        "in_time": report.in_time,
        "shed": report.shed,
        "lost": report.lost,
        "broken_by_the_loss": len(report.broken),
        "ttft_p50_ms": report.ttft.quantile(0.5),
        "ttft_p99_ms": report.ttft.quantile(0.99),
        "itl_p99_ms": gap_s * 1000 if gap_s is not None else None,
        "hit_ratio": report.hit_ratio,
        "busy_ratio": report.busy_ratio,
        "adapter_loads": report.adapter_loads,
        "events": report.events,
        "cpu_s": report.cpu_s,
        "wall_s": report.wall_s,
        "memory_bytes": report.memory_bytes,
        "points": [
            {
                "at_s": point.at_s, "asked": point.asked, "served": point.served, "refused": point.refused,
                "ttft_p99_ms": point.ttft_p99_ms, "busy_ratio": point.busy_ratio,
            }
            for point in report.points
        ],
    }  # fmt: skip


def _draw(path: Path, title: str, wanted: Scale, reports: Sequence[RegionReport]) -> None:
    marks = [ChartMark(wanted.lost_at_s, "a region is lost")] if wanted.lost_at_s is not None else []

    def series(what: str) -> list[Series]:
        return [
            Series(
                f"region {report.region}",
                [point.at_s for point in report.points],
                [_value(point, what) for point in report.points],
            )
            for report in reports
        ]

    panels = [
        Panel("asked", "requests/s", series("asked"), marks),
        Panel("slowest first tokens", "TTFT p99, ms", series("ttft"), marks, is_log=True),
        Panel("refused or lost", "requests/s", series("refused"), marks),
    ]
    lines(path, title, panels)


def _value(point: Any, what: str) -> float | None:
    if what == "ttft":
        found: float | None = point.ttft_p99_ms
        return found
    return float(getattr(point, what)) / 2.0


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.2%}" if whole else "-"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
