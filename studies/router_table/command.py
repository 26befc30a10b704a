"""`python -m studies table`: every router, trace, load and seed; saved in a file and resumed from it.

It prints shoal against the best other router; `--report` writes all figures, `--plot` a plot, `-o json` every cell.
The exit code is 0 whichever is ahead: this is a measurement.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

import orjson
from rich.table import Table

from functions.cli import charts
from functions.cli.refused import CommandRefused
from functions.cli.simulate_fleet import check_loads
from functions.cli.terminal import TerminalReporter, make_console, make_error_console
from functions.simulator.experiment import FleetTooSlow
from functions.simulator.workload.traces import TraceUnreadable
from studies.router_table.runs import Capacity, Line, Plan, ResultsUnusable, Sizes, run_missing
from studies.router_table.summary import Cell, Standing, cells, markdown, milliseconds, standings
from studies.router_table.trials import TRIALS
from studies.routers.command import known_routers

_DRAWN = ("shoal", "oracle", "llm-d-precise", "dynamo", "cache-aware", "least-loaded", "round-robin", "aibrix")
_COLUMNS = 3
_LEAST_PERCENT = 0.05


def table(
    results: Path,
    *,
    traces_dir: Path,
    trials: Sequence[str],
    routers: Sequence[str],
    loads: Sequence[float],
    seeds: int,
    requests: int,
    processes: int,
    report: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    check_loads(loads)
    plan = Plan(traces_dir, _trials(trials), tuple(known_routers(routers)), tuple(loads), Sizes(requests, seeds))
    try:
        if plot is not None:
            charts.check(plot)
        with TerminalReporter(make_error_console()).step("Simulating") as step:
            lines = run_missing(plan, results, processes, step.update)
            step.note(f"{len(lines):,} lines in {results}")
    except (TraceUnreadable, OSError) as error:
        raise CommandRefused(f"a trace or a file cannot be used: {error}") from error
    except (ResultsUnusable, FleetTooSlow, charts.PictureImpossible) as error:
        raise CommandRefused(str(error)) from error
    _show(plan, lines, report=report, plot=plot, as_json=as_json)


def _show(plan: Plan, lines: Sequence[Line], *, report: Path | None, plot: Path | None, as_json: bool) -> None:
    found = [
        cell
        for cell in cells(lines)
        if cell.trial in plan.trials and cell.router in plan.routers and cell.load_ratio in plan.loads
    ]
    capacities: dict[str, list[float]] = {}
    for line in lines:
        if isinstance(line, Capacity):
            capacities.setdefault(line.trial, []).append(line.per_s)
    if report is not None:
        report.write_text(markdown(found, capacities), encoding="utf-8")
    if plot is not None:
        _draw(plot, plan, found)
    if as_json:
        shown = {"capacities_per_s": capacities, "cells": [_finite(asdict(cell)) for cell in found]}
        sys.stdout.write(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    make_console().print(_standings(standings(found)))


def _trials(names: Sequence[str]) -> tuple[str, ...]:
    unknown = [name for name in names if name not in TRIALS]
    if unknown:
        raise CommandRefused(f"there is no trace {unknown[0]!r}: one of {', '.join(TRIALS)}")
    return tuple(names or TRIALS)


def _standings(found: Sequence[Standing]) -> Table:
    shown = Table(
        "trace", "load", "figure", "shoal", "best other", "router", "shoal is", "by", box=None, pad_edge=False
    )
    for column in (3, 4, 7):
        shown.columns[column].justify = "right"
    for each in found:
        is_p99 = each.figure == "ttft_p99_ms"
        ours, other = (
            (f"{milliseconds(each.ours)} ms", f"{milliseconds(each.best_other)} ms")
            if is_p99
            else (f"{each.ours:.2%}", f"{each.best_other:.2%}")
        )
        shown.add_row(
            each.trial, f"{each.load_ratio:.0%}", "TTFT p99" if is_p99 else "goodput", ours, other, each.other,
            each.place, f"{each.lead_ratio:+.1%}",
        )  # fmt: skip
    return shown


def _draw(path: Path, plan: Plan, found: Sequence[Cell]) -> None:
    panels = []
    for start in range(0, len(plan.trials), _COLUMNS):
        row = plan.trials[start : start + _COLUMNS]
        blank = [charts.Panel("", "", ())] * (_COLUMNS - len(row))
        panels += [_panel(found, trial, "TTFT p99", "ms", _p99_ms) for trial in row] + blank
        panels += [_panel(found, trial, "late first tokens", "%, log", _late_percent) for trial in row] + blank
    seeds = min((cell.seeds for cell in found), default=0)
    title = f"Routers compared: medians of {seeds} seeds with {plan.sizes.requests:,} requests each"
    charts.lines(path, title, panels, columns=_COLUMNS, x_label="load, of capacity")


def _panel(found: Sequence[Cell], trial: str, what: str, unit: str, figure: Callable[[Cell], float]) -> charts.Panel:
    series = []
    for router in _DRAWN:
        here = [cell for cell in found if cell.trial == trial and cell.router == router]
        if here:
            loads, figures = [cell.load_ratio for cell in here], [figure(cell) for cell in here]
            series.append(charts.Series(router, loads, figures, "dashed" if router == "oracle" else "solid"))
    return charts.Panel(f"{trial}: {what}", unit, series, is_log=True)


def _p99_ms(cell: Cell) -> float:
    return cell.ttft_p99_ms.middle


def _late_percent(cell: Cell) -> float:
    """Return the late share, at least one in 2,000: a logarithmic axis has no zero."""
    return max(_LEAST_PERCENT, 100 * (1 - cell.goodput_ratio.middle))


def _finite(value: Any) -> Any:
    """Replace infinity by null, since JSON has none."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return None if value == inf else value
