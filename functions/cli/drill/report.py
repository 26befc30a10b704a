"""Report of a drill: a JSON document (stored in the fleet's `drills/`, printed with -o json) and tables for a terminal.

`picture` draws the same document.
"""

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.markup import escape
from rich.table import Table

from functions.cli.drill.declared import Drill
from functions.cli.drill.judging import DrillVerdict
from functions.cli.drill.recording import LEAD_S
from functions.cli.drill.runner import PlayedDrill
from functions.cli.drill.timeline import seconds
from functions.cli.refused import CommandRefused
from functions.controller.local.files import replace_file

VERSION = 1
KEPT = 200  # stored reports; older ones are removed
_NAME = re.compile(r"\d{8}T\d{6}Z-[a-z0-9-]+\.json")


def report(
    drill: Drill, played: PlayedDrill, judgement: DrillVerdict, ended_unix_s: float | None = None
) -> dict[str, Any]:
    """Return the drill's report as plain values. Times are seconds since the drill began; `*_after_s` since the fault
    or its removal."""
    seen = played.timeline
    ended_unix_s = time.time() if ended_unix_s is None else ended_unix_s
    return {
        "version": VERSION,
        "drill": drill.name,
        "summary": drill.summary,
        "fault": drill.fault,
        "taken_back": drill.taken_back,
        "alert": drill.alert,
        "runbook": f"docs/how-to/runbooks/{drill.name}.md",
        "passed": judgement.passed,
        "began_unix_s": round(ended_unix_s - seen.ended_s, 3),
        "ended_unix_s": round(ended_unix_s, 3),
        "environment": played.environment,
        "engine": played.engine,
        "replicas": played.replicas,
        "alert_window_scale": played.window_scale,
        "load_average": [round(value, 2) for value in played.load_average],
        "marks": {
            "injected_s": _r(seen.injected_s),
            "taken_back_s": _r(seen.taken_back_s),
            "ended_s": _r(seen.ended_s),
        },
        "effect_after_s": _r(judgement.effect_after_s),
        "alert_checked": seen.sees_alerts,
        "alert_fired_after_s": _r(judgement.fired_after_s),
        "alert_cleared_after_s": _r(judgement.cleared_after_s),
        "recovered_after_s": _r(judgement.recovered_after_s),
        "mended_after_s": _r(judgement.mended_after_s),
        "requests": len(seen.outcomes),
        "endings": judgement.endings,
        "wrongly_failed": judgement.wrongly_failed,
        "left_out": played.left_out,
        "examples": list(judgement.examples),
        "checks": [msgspec.to_builtins(check) for check in judgement.checks],
        "alerts": [[_r(change.at_s), change.name, change.state] for change in seen.alerts],
        "effect": {
            "metric": drill.effect.metric,
            "words": drill.effect.words,
            "series": [[_r(look.at_s), look.effect] for look in seen.looks],
        },
        "accounts": msgspec.to_builtins(seen.accounts),
        "recorded": {"begins_s": -LEAD_S, "series": played.recorded},
        "seconds": [msgspec.to_builtins(second) for second in seconds(seen.outcomes, seen.ended_s)],
    }


def store_report(folder: Path, made: dict[str, Any]) -> Path:
    """Store the report and return its file; remove the oldest reports, of whichever drill, beyond KEPT."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = datetime.fromtimestamp(made["ended_unix_s"], UTC).strftime("%Y%m%dT%H%M%SZ")
    path = folder / f"{stamp}-{made['drill']}.json"
    replace_file(path, msgspec.json.encode(made))
    reports = sorted(file for file in folder.iterdir() if _NAME.fullmatch(file.name))
    for old in reports[:-KEPT]:
        old.unlink(missing_ok=True)
    return path


def newest(folder: Path, drill: str) -> dict[str, Any] | None:
    """Return the newest stored report of a drill, or None. Fail if it cannot be read."""
    kept = sorted(file for file in folder.glob(f"*-{drill}.json") if file.name == f"{file.name[:16]}-{drill}.json")
    if not kept:
        return None
    try:
        made: dict[str, Any] = msgspec.json.decode(kept[-1].read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise CommandRefused(f"{kept[-1]} cannot be read: {error}") from error
    return made


def checks_table(made: dict[str, Any]) -> Table:
    table = Table("", "check", "", box=None, pad_edge=False, show_header=False)
    for check in made["checks"]:
        sign = {True: "[green]✓[/]", False: "[red]✗[/]", None: "[yellow]?[/]"}[check["ok"]]
        table.add_row(sign, escape(check["what"]), f"[dim]{escape(check['words'])}[/]")
    return table


def summary_table(reports: Sequence[dict[str, Any]], skipped: Sequence[tuple[str, str]] = ()) -> Table:
    table = Table(box=None, pad_edge=False)
    for name, right in (("drill", False), ("", False), *((head, True) for head in _HEADS[1:])):
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for made in reports:
        word = "[green]held[/]" if made["passed"] else "[red]failed[/]"
        table.add_row(escape(made["drill"]), word, *_cells(made))
    for name, why in skipped:
        table.add_row(escape(name), "[yellow]not run[/]", f"[dim]{escape(why)}[/]")
    return table


_HEADS = ("drill", "alert fires after s", "clears after s", "requests", "wrongly failed", "recovered after s")


def markdown(reports: Sequence[dict[str, Any]]) -> str:
    """Return the summary as a Markdown table for docs/measurements."""
    lines = [f"| {' | '.join(_HEADS)} |", "|---|" + "---:|" * (len(_HEADS) - 1)]
    lines += [f"| {made['drill']} | {' | '.join(_cells(made))} |" for made in reports]
    return "\n".join(lines)


def _cells(made: dict[str, Any]) -> list[str]:
    alert = [_shown(made["alert_fired_after_s"]), _shown(made["alert_cleared_after_s"])]
    checked = alert if made["alert_checked"] else ["not checked"] * 2
    return [*checked, str(made["requests"]), str(made["wrongly_failed"]), _shown(made["recovered_after_s"])]


def _shown(value: float | None) -> str:
    return f"{value:.1f}" if value is not None else "never"


def _r(value: float | None) -> float | None:
    return round(value, 3) if value is not None else None
