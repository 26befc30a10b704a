"""A run as tables in a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table

from loadtests.bench.figures import GOALS, RR, Samples, Spread, added, ratio, reached, spread


@dataclass(frozen=True, slots=True)
class Row:
    """One measure: its label in tables, its figure and its format."""

    words: str
    figure: str
    kind: Literal["figure", "added"] = "figure"
    decimals: int = 1


ROWS = (
    Row("CPU µs per 1 KB request", "request_1k_us"),
    Row("CPU µs per 8 KB request", "request_8k_us"),
    Row("CPU µs per 64 KB request", "request_64k_us", decimals=0),
    Row("CPU µs per 200 KB request", "request_200k_us", decimals=0),
    Row("CPU µs per chunk, 4,000/s", "chunk_4k_us"),
    Row("CPU µs per chunk, 40,000/s", "chunk_40k_us"),
    Row("added round trip p50, µs", "rtt_p50_us", "added", 0),
    Row("added round trip p99, µs", "rtt_p99_us", "added", 0),
    Row("RSS per open stream, KiB", "stream_kib"),
    Row("client leaves in prefill: engine request closed after, s", "leaving_s", decimals=2),
    Row("client stops reading: RSS grows by, KiB", "stalled_kib", decimals=0),
    Row("requests/s on one core, 1 KB", "requests_1k_per_s", decimals=0),
    Row("failed", "failed", decimals=0),
)
NO_COST = ("requests_1k_per_s", "failed")  # more requests/s are better, and failures are no cost


def show(samples: Samples, contenders: Sequence[str], console: Console) -> None:
    console.print(_figures(samples, [name for name in contenders if name != "direct"]))
    ratios = _ratios(samples, [name for name in contenders if name not in ("direct", RR)])
    if ratios.row_count:
        console.print(ratios)
    if "shoal" in contenders:
        console.print(_goals(samples))


def value(samples: Samples, contender: str, row: Row) -> Spread | None:
    return (added if row.kind == "added" else spread)(samples, contender, row.figure)


def cell(found: Spread | None, decimals: int) -> str:
    if found is None:
        return "–"
    middle = f"{found.middle:,.{decimals}f}"
    if found.least == found.most:
        return middle
    return f"{middle} [{found.least:,.{decimals}f}–{found.most:,.{decimals}f}]"


def _figures(samples: Samples, contenders: Sequence[str]) -> Table:
    table = _table("One gateway on one core: medians of the rounds, their range in brackets", contenders)
    for row in ROWS:
        cells = [cell(value(samples, name, row), row.decimals) for name in contenders]
        if any(text != "–" for text in cells):
            table.add_row(row.words, *cells)
    return table


def _ratios(samples: Samples, contenders: Sequence[str]) -> Table:
    table = _table(f"The same over {RR}, round by round: below 1 is cheaper", contenders)
    for row in ROWS:
        cells = [cell(ratio(samples, name, RR, row.figure), 2) for name in contenders]
        if row.kind == "figure" and row.figure not in NO_COST and any(text != "–" for text in cells):
            table.add_row(row.words, *cells)
    return table


def _goals(samples: Samples) -> Table:
    table = _table("Goals", ("shoal", "goal", "held"))
    for goal in GOALS:
        found = reached(samples, goal)
        if found is not None:
            words = f"≤ {goal.at_most:g}" + (f" × {goal.peer}" if goal.peer else "")
            held = "yes" if found.middle <= goal.at_most else "[bold]no[/bold]"
            table.add_row(goal.words, cell(found, 2), words, held)
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    return table
