"""`shoal simulate cascade --trace FILE`: which threshold escalates how many, from the doubts that traces recorded.

A cascade writes the doubt of every small answer into its request's trace, whatever was decided. Each row here is one
threshold: either asked for, or one that would have escalated a round share of these answers.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable
from math import inf
from pathlib import Path

import orjson
from rich.table import Table

from functions.cli.refused import Refused
from functions.cli.terminal import make_console
from functions.decisions.routing.cascade import Escalations, escalations, quantile_thresholds
from functions.telemetry.trace_row import TraceRow, rows

WANTED_RATIOS = (0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05, 0.02, 0.01)
Step = tuple[str, str]  # from which pool, to which


def cascade(trace: Path, thresholds: list[float], *, as_json: bool) -> None:
    wrong = [threshold for threshold in thresholds if not 0.0 <= threshold < inf]
    if wrong:
        raise Refused(f"{wrong[0]:g} is no threshold: it is a number of nats a token, from 0 on")
    if not trace.exists():
        raise Refused(f"there is no {trace}: give a trace file, or a directory of them (SHOAL_GATEWAY_TRACE_DIR)")
    recorded = doubts(rows(trace))
    if not recorded:
        raise Refused(f"no answer in {trace} was judged: no request of it went through a cascade")
    tables = {step: table(found, thresholds) for step, found in sorted(recorded.items())}
    if as_json:
        sys.stdout.write(_as_json(tables, recorded).decode() + "\n")
        return
    console = make_console()
    for (small, large), lines in tables.items():
        shown = Table("threshold (nats)", "escalated", "of answers", box=None, pad_edge=False)
        for line in lines:
            shown.add_row(f"{line.threshold_nats:.3f}", f"{line.ratio:.1%}", f"{line.escalated}")
        console.print(f"{small} to {large}: {len(recorded[small, large])} answers judged")
        console.print(shown)


def doubts(recorded: Iterable[TraceRow]) -> dict[Step, list[float]]:
    """The recorded doubts of each step."""
    found: dict[Step, list[float]] = defaultdict(list)
    for row in recorded:
        judged = row.route_score.get("cascade")
        if isinstance(judged, dict) and isinstance(judged.get("doubt_nats"), int | float):
            found[str(judged.get("from")), str(judged.get("to"))].append(float(judged["doubt_nats"]))
    return dict(found)


def table(found: list[float], thresholds: list[float]) -> list[Escalations]:
    """By threshold; those asked for, or such as lead to round shares."""
    wanted = sorted(set(thresholds or quantile_thresholds(found, WANTED_RATIOS)))
    return escalations(found, wanted)


def _as_json(tables: dict[Step, list[Escalations]], recorded: dict[Step, list[float]]) -> bytes:
    document = [
        {"from": small, "to": large, "answers": len(recorded[small, large]), "rows": [row._asdict() for row in lines]}
        for (small, large), lines in tables.items()
    ]
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)
