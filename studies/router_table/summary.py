"""Summary of the lines: each router's figures in each cell over the seeds, and the best router.

A figure is the median of the seeds with the minimum and maximum. Two routers are level if their medians are within
LEVEL_RATIO: quantiles are exact to 1 %. The oracle does not compete: it shows the value of perfect knowledge.

Neighbours: `runs` makes the lines; the CLI and docs/measurements/README.md show them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Literal

from studies.router_table.runs import Line, Run

LEVEL_RATIO = 0.01
ORACLE: str = "oracle"
OURS: str = "shoal"
Figure = Literal["ttft_p99_ms", "goodput_ratio"]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range over the seeds; infinite if too many requests had no first token."""

    middle: float
    least: float
    most: float

    @classmethod
    def from_values(cls, values: Sequence[float | None]) -> "Spread":
        known = [inf if value is None else value for value in values]
        return cls(median(known), min(known), max(known))


@dataclass(frozen=True, slots=True)
class Cell:
    trial: str
    load_ratio: float
    router: str
    seeds: int
    ttft_p50_ms: Spread
    ttft_p99_ms: Spread
    goodput_ratio: Spread
    itl_p99_ms: Spread
    hit_ratio: float | None
    cold_starts: float


@dataclass(frozen=True, slots=True)
class Standing:
    """shoal against the best of the others in one cell."""

    trial: str
    load_ratio: float
    figure: Figure
    ours: float
    best_other: float
    other: str

    @property
    def lead_ratio(self) -> float:
        """Advantage over the best other, as a share of its figure; negative if shoal is worse."""
        if self.ours == self.best_other:
            return 0.0
        if self.figure == "goodput_ratio":
            return self.ours / self.best_other - 1.0 if self.best_other else inf
        return 1.0 - self.ours / self.best_other if self.best_other < inf else 1.0

    @property
    def place(self) -> Literal["first", "level", "behind"]:
        if abs(self.lead_ratio) <= LEVEL_RATIO:
            return "level"
        return "first" if self.lead_ratio > 0.0 else "behind"


def cells(lines: Iterable[Line]) -> list[Cell]:
    """Return the cells by trial, load and router, in order of first appearance."""
    by_cell: dict[tuple[str, float, str], list[Run]] = {}
    orders: tuple[dict[object, None], dict[object, None]] = ({}, {})
    for line in lines:
        if isinstance(line, Run):
            by_cell.setdefault((line.trial, line.load_ratio, line.router), []).append(line)
            orders[0].setdefault(line.trial)
            orders[1].setdefault(line.router)
    trials, routers = list(orders[0]), list(orders[1])
    ordered = sorted(by_cell, key=lambda key: (trials.index(key[0]), key[1], routers.index(key[2])))
    return [_cell(key, by_cell[key]) for key in ordered]


def standings(found: Sequence[Cell]) -> list[Standing]:
    """Return one standing for each cell and figure with shoal and another router."""
    by_place: dict[tuple[str, float], list[Cell]] = {}
    for cell in found:
        by_place.setdefault((cell.trial, cell.load_ratio), []).append(cell)
    result = []
    for (trial, load), here in by_place.items():
        ours = next((cell for cell in here if cell.router == OURS), None)
        others = [cell for cell in here if cell.router not in (OURS, ORACLE)]
        if ours is None or not others:
            continue
        slowest = min(others, key=lambda cell: cell.ttft_p99_ms.middle)
        good = max(others, key=lambda cell: cell.goodput_ratio.middle)
        result += [
            Standing(trial, load, "ttft_p99_ms", ours.ttft_p99_ms.middle, slowest.ttft_p99_ms.middle, slowest.router),
            Standing(trial, load, "goodput_ratio", ours.goodput_ratio.middle, good.goodput_ratio.middle, good.router),
        ]
    return result


def markdown(found: Sequence[Cell], capacities: Mapping[str, Sequence[float]]) -> str:
    """Return a table for each trial, preceded by the standings."""
    parts = [
        f"### {trial}\n\nCapacity {_range(capacities[trial])} requests/s.\n\n{_table(found, trial)}"
        for trial in dict.fromkeys(cell.trial for cell in found)
    ]
    return "\n\n".join([_standings_table(standings(found)), *parts]) + "\n"


def _standings_table(found: Sequence[Standing]) -> str:
    rows = [
        f"| {each.trial} | {each.load_ratio:.0%} | {'p99' if each.figure == 'ttft_p99_ms' else 'goodput'} "
        f"| {_figure(each.figure, each.ours)} | {_figure(each.figure, each.best_other)} ({each.other}) "
        f"| {each.place} | {each.lead_ratio:+.1%} |"
        for each in found
    ]
    head = "| trace | load | figure | shoal | best other | shoal is | by |\n|---|---|---|---|---|---|---|"
    return "\n".join([head, *rows])


def _table(found: Sequence[Cell], trial: str) -> str:
    head = (
        "| load | router | TTFT p50 ms | TTFT p99 ms (range) | goodput (range) | ITL p99 ms | hits | cold starts |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    rows = [
        f"| {cell.load_ratio:.0%} | {cell.router} | {milliseconds(cell.ttft_p50_ms.middle)} "
        f"| {milliseconds(cell.ttft_p99_ms.middle)} ({milliseconds(cell.ttft_p99_ms.least)}-"
        f"{milliseconds(cell.ttft_p99_ms.most)}) "
        f"| {cell.goodput_ratio.middle:.2%} ({cell.goodput_ratio.least:.1%}-{cell.goodput_ratio.most:.1%}) "
        f"| {milliseconds(cell.itl_p99_ms.middle)} | {percent(cell.hit_ratio)} | {cell.cold_starts:,.0f} |"
        for cell in found
        if cell.trial == trial
    ]
    return "\n".join([head, *rows])


def milliseconds(value: float) -> str:
    return "never" if value == inf else f"{value:,.0f}"


def percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"


def _range(values: Sequence[float]) -> str:
    least, most = min(values), max(values)
    return f"{least:,.1f}" if least == most else f"{least:,.1f} to {most:,.1f}"


def _figure(figure: Figure, value: float) -> str:
    return f"{value:.2%}" if figure == "goodput_ratio" else f"{milliseconds(value)} ms"


def _cell(key: tuple[str, float, str], runs: Sequence[Run]) -> Cell:
    trial, load, router = key
    hits = [run.hit_ratio for run in runs if run.hit_ratio is not None]
    return Cell(
        trial, load, router, len(runs),
        Spread.from_values([run.ttft_p50_ms for run in runs]),
        Spread.from_values([run.ttft_p99_ms for run in runs]),
        Spread.from_values([run.goodput_ratio for run in runs]),
        Spread.from_values([run.itl_p99_ms for run in runs]),
        median(hits) if hits else None,
        median(run.cold_starts for run in runs),
    )  # fmt: skip
