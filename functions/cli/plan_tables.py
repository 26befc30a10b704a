"""Report of `shoal plan` as JSON and as tables: diff, simulated traffic, figures of each class and a verdict.

A row is marked if it is better or worse beyond noise.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from functions.cli.diff import changes_tree
from functions.controller.gitops.changes import Change
from functions.simulator.plan.comparison import ComparedFigure, Figure
from functions.simulator.plan.figures import Key
from functions.simulator.plan.slos import KEPT_RATIO, Promise, Verdict
from functions.simulator.plan.unsimulated import Unsimulated


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    base: str
    candidate: str
    changes: tuple[Change, ...]
    engine_changes: tuple[str, ...]  # changed engine arguments, which the snapshot does not contain
    unsimulated: tuple[Unsimulated, ...]
    traffic: str
    traffic_is_made_up: bool
    played: str
    engines: tuple[str, ...]
    notes: tuple[str, ...]
    models: Mapping[str, str] = field(default_factory=dict)  # by pool, if its model has another name
    compared: Mapping[Key, ComparedFigure] = field(default_factory=dict)
    promises: tuple[Promise, ...] = ()
    verdict: Verdict = "same"

    @property
    def refuses(self) -> bool:
        return self.verdict == "breaks"


def as_json(report: PlanReport) -> dict[str, Any]:
    return {
        "base": report.base,
        "candidate": report.candidate,
        "verdict": report.verdict,
        "changes": [asdict_change(change) for change in report.changes],
        "engine_changes": list(report.engine_changes),
        "not_simulated": [asdict(each) for each in report.unsimulated],
        "traffic": report.traffic,
        "traffic_is_made_up": report.traffic_is_made_up,
        "played": report.played,
        "engines": list(report.engines),
        "notes": list(report.notes),
        "promises": [asdict(each) for each in report.promises],
        "figures": [
            _figure(key, compared, report.models.get(key.pool, key.pool)) for key, compared in report.compared.items()
        ],
    }


def asdict_change(change: Change) -> dict[str, str]:
    return {"kind": change.kind, "name": change.name, "verb": change.verb, "words": change.words}


def _figure(key: Key, compared: ComparedFigure, model: str) -> dict[str, Any]:
    difference = compared.difference
    return {
        "pool": key.pool,
        "model": model,
        "class": key.band,
        "figure": key.figure,
        "unit": compared.figure.unit,
        "before": compared.before,
        "after": compared.after,
        "difference": difference.mean if difference is not None else None,
        "low": difference.low if difference is not None else None,
        "high": difference.high if difference is not None else None,
        "marked": compared.marked,
    }


_SHOWN = 15  # rows of changes that are not simulated
_MARKS = {"better": "[green]▲ better[/]", "worse": "[red]▼ worse[/]", "same": ""}
_VERDICTS = {
    "breaks": ("red", "refused: it breaks a promise, or breaks a broken one further"),
    "worse": ("yellow", "worse; every promise that was kept stays kept"),
    "mixed": ("yellow", "some better, some worse; every promise that was kept stays kept"),
    "better": ("green", "better; every promise that was kept stays kept"),
    "same": ("green", "no simulated figure changes"),
}


def show(report: PlanReport, console: Console) -> None:
    console.print(f"[bold]{escape(report.candidate)}[/] against [bold]{escape(report.base)}[/]")
    if report.changes or not report.engine_changes:
        console.print(changes_tree(report.changes, report.base))
    for line in report.engine_changes:
        console.print(f"[yellow]~[/] {escape(line)}")
    _show_unsimulated(report, console)
    console.print()
    loud = "bold yellow" if report.traffic_is_made_up else "default"
    console.print(f"[{loud}]traffic: {escape(report.traffic)}[/]", soft_wrap=True)
    console.print(f"played:  {escape(report.played)}", soft_wrap=True)
    for line in report.engines:
        console.print(f"engine:  {escape(line)}", soft_wrap=True)
    for line in report.notes:
        console.print(f"[yellow]note:[/]    {escape(line)}", soft_wrap=True)
    console.print()
    console.print(_figures(report))
    for each in report.promises:
        console.print(_promise(each))
    style, words = _VERDICTS[report.verdict]
    console.print(f"[bold {style}]{words}[/]")


def _show_unsimulated(report: PlanReport, console: Console) -> None:
    for each in report.unsimulated[:_SHOWN]:
        console.print(f"[yellow]not simulated:[/] {escape(each.what)} [dim]({escape(each.why)})[/]", soft_wrap=True)
    if len(report.unsimulated) > _SHOWN:
        console.print(f"[yellow]not simulated:[/] … and {len(report.unsimulated) - _SHOWN} more")


def _figures(report: PlanReport) -> Table:
    table = Table("pool", "class", "figure", "before", "after", "change", "90 %", "", box=None, pad_edge=False)
    for column in table.columns[3:7]:
        column.justify = "right"
    former: tuple[str, str] | None = None
    for key, compared in _worth_showing(report.compared.items()):
        place = (key.pool, key.band)
        if former is not None and place != former:
            table.add_row()
        model = report.models.get(key.pool)
        name = f"{key.pool} (of {model})" if model is not None else key.pool
        head = (escape(name), key.band or "all") if place != former else ("", "")
        table.add_row(*head, compared.figure.name, *_cells(compared), _MARKS[compared.marked])
        former = place
    return table


def _worth_showing(figures: Iterable[tuple[Key, ComparedFigure]]) -> Iterator[tuple[Key, ComparedFigure]]:
    """Yield the figures without shares that are 0 or missing on both sides."""
    for key, compared in figures:
        if compared.figure.unit != "ratio" or compared.before or compared.after:
            yield key, compared


def _cells(compared: ComparedFigure) -> tuple[str, str, str, str]:
    figure, difference = compared.figure, compared.difference
    before, after = _value(figure, compared.before), _value(figure, compared.after)
    if difference is None:
        return before, after, "", ""
    if difference.low == difference.mean == difference.high == 0.0:
        return before, after, "=", ""
    signed = f"{_signed(figure, difference.mean)}{_percent(compared)}"
    return before, after, signed, f"{_signed(figure, difference.low)} to {_signed(figure, difference.high)}"


def _value(figure: Figure, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2%}" if figure.unit == "ratio" else _plain(figure, value)


def _signed(figure: Figure, value: float) -> str:
    sign = "+" if value >= 0.0 else "-"
    if figure.unit == "ratio":
        return f"{sign}{abs(value) * 100:.2f}"  # percentage points
    return sign + _plain(figure, abs(value))


def _plain(figure: Figure, value: float) -> str:
    if figure.unit == "ms":
        return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms"
    return f"{value:,.3f}" if value < 10 else f"{value:,.1f}"


def _percent(compared: ComparedFigure) -> str:
    if compared.figure.unit == "ratio" or not compared.before or compared.difference is None:
        return ""
    return f" ({compared.difference.mean / compared.before:+.0%})"


def _promise(promise: Promise) -> str:
    words = {
        "kept": "[green]kept[/]",
        "missed": "[yellow]missed, as before[/]",
        "in doubt": "[yellow]in doubt: within noise; use more --seeds[/]",
        "broken": "[bold red]BROKEN[/]",
        "worsened": "[bold red]missed by more than before[/]",
        "mended": "[green]kept again[/]",
        "eased": "[yellow]missed, by less than before[/]",
    }[promise.state]
    where = f"{promise.pool}, {promise.band}"
    return (
        f"promise: {escape(where)}: first token within {promise.slo_ms:,.0f} ms for {KEPT_RATIO:.0%}: "
        f"{promise.before_ratio:.2%} before, {promise.after_ratio:.2%} after: {words}"
    )
