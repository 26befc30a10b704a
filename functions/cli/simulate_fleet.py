"""`shoal simulate fleet`: simulate a fleet in virtual time, at shares of its capacity.

For each load the table shows the median over the seeds and, with several seeds, the range of the first-token p99.
`-o json` contains every run. Progress goes to standard error, so that standard output holds only the result.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

from functions.cli.refused import CommandRefused
from functions.cli.terminal import TerminalReporter, make_console, make_error_console
from functions.simulator.experiment import Cell, Chats, FleetTooSlow, RecordedWorkload, Workload, compare
from functions.simulator.fleet.engine_profile import PROFILES
from functions.simulator.fleet.setting import Setting
from functions.simulator.router_port import MakeRouter
from functions.simulator.workload.synthetic import Traffic
from functions.simulator.workload.traces import TraceUnreadable

MAX_LOAD = 20.0
OWN_ROUTER: Mapping[str, MakeRouter | None] = {"shoal": None}


def fleet(
    *,
    trace: Path | None,
    replicas: int,
    profile: str,
    loads: Sequence[float],
    seeds: int,
    requests: int,
    as_json: bool,
    routers: Mapping[str, MakeRouter | None] = OWN_ROUTER,
) -> None:
    """Simulate a fleet at each load and print the figures. `routers` maps names to routers, None for shoal's own;
    `studies.routers` compares several."""
    if profile not in PROFILES:
        raise CommandRefused(f"there is no profile {profile!r}: one of {', '.join(PROFILES)}")
    check_loads(loads)
    setting = Setting(replicas=replicas, profile=PROFILES[profile])
    reporter = TerminalReporter(make_error_console())
    try:
        with reporter.step("Simulating") as step:
            capacity, cells = compare(
                setting,
                _workload(trace, requests, seeds),
                routers=routers,
                loads=loads,
                seeds=seeds,
                progress=step.update,
            )
            step.note(f"{len(cells) * seeds} runs of {requests} requests")
    except (TraceUnreadable, OSError) as error:
        raise CommandRefused(f"the trace cannot be read: {error}") from error
    except FleetTooSlow as error:
        raise CommandRefused(str(error)) from error
    if as_json:
        shown = {
            "capacity_per_s": capacity,
            "profile": profile,
            "replicas": replicas,
            "cells": list(map(asdict, cells)),
        }
        sys.stdout.write(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    what = trace.name if trace is not None else "synthetic chats"
    title = f"{what} on {replicas} x {profile}: the fleet keeps up with {capacity:.1f} requests/s"
    _show(make_console(), title, cells)


def check_loads(loads: Sequence[float]) -> None:
    wrong = [load for load in loads if not 0.01 <= load <= MAX_LOAD]
    if wrong:
        raise CommandRefused(
            f"{wrong[0]} is not a load: use a share of the fleet's capacity, from 0.01 to {MAX_LOAD:.0f}"
        )


def _workload(trace: Path | None, requests: int, seeds: int) -> Workload:
    if trace is not None:
        return RecordedWorkload(trace, requests, seeds)
    return Chats(Traffic(requests_per_s=1.0, seconds=1.0), requests)


def _show(console: Console, title: str, cells: Sequence[Cell]) -> None:
    console.print(title)
    table = Table(
        "load", "router", "TTFT p50 ms", "p99 ms", "range", "in time", "shed", "ITL p99 ms", "hits", "busy",
        box=None, pad_edge=False,
    )  # fmt: skip
    for column in table.columns[2:]:
        column.justify = "right"
    former = None
    for cell in cells:
        if former not in (None, cell.load_ratio):
            table.add_row()
        table.add_row(*_row(cell, is_first=former != cell.load_ratio))
        former = cell.load_ratio
    console.print(table)


def _row(cell: Cell, *, is_first: bool) -> list[str]:
    band = ("bands", "interactive")
    slowest = cell.each(*band, "ttft_p99_ms")
    ranged = f"{min(slowest):,.0f}-{max(slowest):,.0f}" if len(slowest) > 1 else ""
    return [
        f"{cell.load_ratio:.0%}" if is_first else "",
        cell.router,
        _number(cell.middle(*band, "ttft_p50_ms")),
        _number(cell.middle(*band, "ttft_p99_ms")),
        ranged,
        _percent(cell.middle(*band, "goodput_ratio")),
        _percent(cell.middle(*band, "shed_ratio")),
        _number(cell.middle("itl_p99_ms")),
        _percent(cell.middle("hit_ratio")),
        _percent(cell.middle("utilization_ratio")),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"
