"""`shoal drill`: choose drills, run them, report. A lock in the fleet's run directory permits one process at a time."""

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from functions.cli.charts import PictureImpossible
from functions.cli.context import CliContext, current_context
from functions.cli.drill import (
    drills_away,
    drills_cascade,
    drills_models,
    drills_pressure,
    drills_replicas,
    picture,
)
from functions.cli.drill.declared import Drill
from functions.cli.drill.journal import JournalUnreadable, UndoJournal
from functions.cli.drill.judging import judge
from functions.cli.drill.report import checks_table, markdown, newest, report, store_report, summary_table
from functions.cli.drill.runner import Performance
from functions.cli.drill.stage import DrillStage
from functions.cli.drill.undoing import undo
from functions.cli.refused import CommandRefused
from functions.cli.terminal import make_console, make_error_console
from functions.controller.local.files import LockTaken, lock_held
from functions.controller.local.prepare.secret_files import read_demo_keys
from functions.telemetry.alerting.scaled import LEAST

# In the order of `--all`: load, replicas, models, cascade, then shared processes.
DRILLS: tuple[Drill, ...] = (
    *drills_pressure.DRILLS,
    *drills_replicas.DRILLS,
    *drills_models.DRILLS,
    *drills_cascade.DRILLS,
    *drills_away.DRILLS,
)


def find_drill(name: str) -> Drill:
    found = next((drill for drill in DRILLS if drill.name == name), None)
    if found is None:
        raise CommandRefused(f"there is no drill {name!r}; there are: {', '.join(drill.name for drill in DRILLS)}")
    return found


@dataclass(frozen=True, slots=True)
class DrillRequest:
    names: tuple[str, ...]
    all_of_them: bool
    tenant: str | None
    scale: float  # factor for the alerts' time windows
    consents: tuple[str, ...]
    plot: Path | None
    as_json: bool


def ls(*, as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "drill": drill.name,
                "summary": drill.summary,
                "fault": drill.fault,
                "taken_back": drill.taken_back,
                "alert": drill.alert,
                "simulated_only": drill.simulated_only,
                "min_replicas": drill.min_replicas,
                "heals_itself": drill.heals_itself,
            }
            for drill in DRILLS
        ]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    table = Table("drill", "alert", "fault", "needs", box=None, pad_edge=False)
    for drill in DRILLS:
        needs = [f"{drill.min_replicas} replicas"] if drill.min_replicas > 1 else []
        needs += ["simulated engines"] if drill.simulated_only else []
        table.add_row(drill.name, drill.alert, escape(drill.fault), ", ".join(needs))
    make_console().print(table)


def play(wanted: DrillRequest) -> None:
    """Undo what a killed drill left, run the drills and show their reports. Fail afterwards if a check failed or no
    drill could run."""
    drills = _chosen(wanted)
    context = current_context(clones=True)
    if not context.layout.ca_file.is_file():
        raise CommandRefused(f"there is no fleet in {context.layout.root}: start one with `shoal up --engine sim`")
    folder = context.layout.run_dir
    try:
        with lock_held(folder / "drill.lock"):
            stage = DrillStage(context, UndoJournal(folder), _tenant(context, wanted.tenant))
            _take_back_earlier(stage)
            reports, skipped = _play_all(drills, stage, wanted)
    except LockTaken as error:
        raise CommandRefused("another drill runs on this fleet: wait until it ends") from error
    except JournalUnreadable as error:
        raise CommandRefused(str(error)) from error
    _show(reports, skipped, wanted)
    failed = [made["drill"] for made in reports if not made["passed"]]
    if failed:
        raise CommandRefused(f"checks failed in: {', '.join(failed)}")
    if not reports:
        raise CommandRefused("no drill was run: " + "; ".join(f"{name}: {why}" for name, why in skipped))


def show_kept(wanted: DrillRequest) -> None:
    """Show, and with `plot` draw, the newest stored report of each drill. Fail if a named drill has none, or if there
    are none at all."""
    drills = _chosen(wanted)
    folder = current_context(clones=True).layout.drills_dir
    found = [(drill.name, newest(folder, drill.name)) for drill in drills]
    missing = [(name, f"no report is stored in {folder}") for name, made in found if made is None]
    reports = [made for _, made in found if made is not None]
    if not reports or (missing and not wanted.all_of_them):
        raise CommandRefused("; ".join(f"{name}: {why}" for name, why in missing))
    for made in reports:
        _draw(wanted.plot, made)
    _show(reports, missing, wanted)


def _chosen(wanted: DrillRequest) -> Sequence[Drill]:
    drills = DRILLS if wanted.all_of_them else tuple(find_drill(name) for name in wanted.names)
    if not drills:
        raise CommandRefused("name a drill, or use --all; `shoal drill --list` shows the drills")
    _check(wanted, len(drills))
    return drills


def _draw(plot: Path | None, made: dict[str, Any]) -> None:
    if plot is not None:
        picture.draw(plot / f"{made['drill']}.svg" if plot.is_dir() else plot, made)


def _check(wanted: DrillRequest, count: int) -> None:
    if not LEAST <= wanted.scale <= 1.0:
        raise CommandRefused(f"--windows {wanted.scale:g}: use {LEAST} to 1, which is as in production")
    if wanted.plot is not None and not wanted.plot.is_dir():
        if count > 1:
            raise CommandRefused(f"--plot {wanted.plot}: several drills need a folder, and this is not one")
        try:
            picture.check(wanted.plot)
        except PictureImpossible as error:
            raise CommandRefused(f"--plot: {error}") from error


def _tenant(context: CliContext, wanted: str | None) -> str:
    known = sorted(read_demo_keys(context.layout))
    if wanted is not None:
        return wanted
    if not known:
        raise CommandRefused("there is no demo tenant: name the tenant of the drill's key with --tenant")
    return known[0]


def _take_back_earlier(stage: DrillStage) -> None:
    """Undo the changes of an earlier drill that was killed. Fail if one cannot be undone."""
    if stage.journal.entries:
        make_error_console().print(f"undoing {len(stage.journal.entries)} changes of a drill that was killed")
        wrong = stage.journal.roll_back(lambda undoing: undo(stage.context, undoing))
        if wrong:
            raise CommandRefused("an earlier drill's changes could not be undone: " + "; ".join(wrong))


def _play_all(
    drills: Sequence[Drill], stage: DrillStage, wanted: DrillRequest
) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    reports: list[dict[str, Any]] = []
    skipped: list[tuple[str, str]] = []
    progress = make_error_console()
    for drill in drills:
        progress.print(f"[bold]{drill.name}[/]: {escape(drill.summary)}")
        try:
            made = _play_one(drill, stage, wanted, progress)
        except Exception as error:  # its changes are undone by now; the next drills still run
            if len(drills) == 1:
                raise
            why = str(error) if isinstance(error, CommandRefused) else f"{type(error).__name__}: {error}"
            skipped.append((drill.name, why))
            progress.print(f"  [yellow]not run:[/] {escape(why)}")
            continue
        reports.append(made)
        _draw(wanted.plot, made)
    return reports, skipped


def _play_one(drill: Drill, stage: DrillStage, wanted: DrillRequest, progress: Console) -> dict[str, Any]:
    def say(words: str) -> None:
        progress.print(f"  [dim]{escape(words)}[/]")

    performance = Performance(drill, stage, scale=wanted.scale, consents=list(wanted.consents), say=say)
    played = asyncio.run(_interruptible(performance))
    made = report(drill, played, judge(drill, played.timeline))
    say(f"report: {store_report(stage.context.layout.drills_dir, made)}")
    progress.print(checks_table(made))
    return made


async def _interruptible(performance: Performance) -> Any:
    """Run the drill so that SIGTERM ends it like Ctrl-C: all changes are undone."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await performance.play()
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _show(reports: Sequence[dict[str, Any]], skipped: Sequence[tuple[str, str]], wanted: DrillRequest) -> None:
    if wanted.as_json:
        document = {"reports": list(reports), "not_played": [{"drill": name, "why": why} for name, why in skipped]}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    console = make_console()
    console.print(summary_table(reports, skipped))
    if wanted.all_of_them and reports:
        console.print("\nfor docs/measurements:\n", style="dim")
        console.print(markdown(reports), markup=False, soft_wrap=True)
