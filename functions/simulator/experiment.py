"""Routers side by side: the same workload, at shares of what the fleet can do, over several seeds.

    capacity  = the most requests per second that the fleet keeps up with, found by halving: sent to the least loaded,
                without a waiting room, at most 2 % wait for their first token when the last one comes
    a cell    = one router at one load; its figures are the median over the seeds, with their range

Neighbours: `simulation` runs one cell, `workload` makes the requests; the CLI's `simulate_fleet` shows the table.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from functions.decisions.baselines import RouterName
from functions.simulator.fleet.simulation import Setting, simulate
from functions.simulator.workload.asked import Asked
from functions.simulator.workload.synthetic import BLOCK_TOKENS, Traffic, synthetic
from functions.simulator.workload.traces import MOONCAKE_BLOCK_TOKENS, TraceUnreadable, read_trace

_LATE_RATIO = 0.02
_HALVINGS = 5  # to within 3 %
_LEAST_PER_S, _MOST_PER_S = 1e-3, 1e6


class Workload(Protocol):
    """Requests at whatever rate is asked for."""

    @property
    def block_tokens(self) -> int:
        """The size of the blocks by which prompts are compared."""

    def at_rate(self, requests_per_s: float, seed: int) -> Iterator[Asked]:
        """In order of time."""


@dataclass(frozen=True, slots=True)
class Chats:
    """Synthetic traffic of a given number of requests."""

    traffic: Traffic
    requests: int

    @property
    def block_tokens(self) -> int:
        return BLOCK_TOKENS

    def at_rate(self, requests_per_s: float, seed: int) -> Iterator[Asked]:
        seconds = self.requests / requests_per_s
        return synthetic(replace(self.traffic, requests_per_s=requests_per_s, seconds=seconds), seed)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace, played faster or slower; each seed is a window of it that begins elsewhere."""

    path: Path
    requests: int
    seeds: int

    @property
    def block_tokens(self) -> int:
        return MOONCAKE_BLOCK_TOKENS

    def at_rate(self, requests_per_s: float, seed: int) -> Iterator[Asked]:
        rows = list(self._window(seed))
        if len(rows) < 2:
            raise TraceUnreadable(f"{self.path}: fewer than two requests")
        start_s = rows[0].at_s
        lasts_s = max(1e-3, rows[-1].at_s - start_s)
        factor = (len(rows) / lasts_s) / requests_per_s
        for row in rows:
            row.at_s = (row.at_s - start_s) * factor
            yield row

    def _window(self, seed: int) -> Iterator[Asked]:
        total = sum(1 for _ in read_trace(self.path))
        spare = max(0, total - self.requests)
        first = spare * (seed % self.seeds) // max(1, self.seeds - 1) if self.seeds > 1 else 0
        return islice(read_trace(self.path), first, first + self.requests)


@dataclass(frozen=True, slots=True)
class Cell:
    """One router at one load."""

    router: RouterName
    load_ratio: float
    requests_per_s: float
    runs: tuple[dict[str, Any], ...]  # `Outcome.figures`, one a seed

    def middle(self, *path: str) -> float | None:
        """The median of one figure over the seeds; None where no seed has it."""
        found = self.each(*path)
        return median(found) if found else None

    def each(self, *path: str) -> list[float]:
        return [value for run in self.runs if (value := _at(run, path)) is not None]


def capacity_per_s(setting: Setting, workload: Workload, seed: int) -> float:
    """Requests per second; see the prologue."""
    plain = replace(setting, router="least-loaded", admission=None, block_tokens=workload.block_tokens, extra_s=0.0)
    low = high = 1.0
    while high < _MOST_PER_S and _keeps_up(plain, workload, high, seed):
        low, high = high, high * 2
    while low >= high and low > _LEAST_PER_S:
        low /= 2
        if not _keeps_up(plain, workload, low, seed):
            high = low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _keeps_up(plain, workload, middle, seed):
            low = middle
        else:
            high = middle
    return low


def _keeps_up(setting: Setting, workload: Workload, requests_per_s: float, seed: int) -> bool:
    outcome = simulate(setting, workload.at_rate(requests_per_s, seed))
    asked = sum(band.asked for band in outcome.bands)
    return asked - sum(band.served for band in outcome.bands) <= _LATE_RATIO * asked


def compare(
    setting: Setting,
    workload: Workload,
    *,
    routers: Sequence[RouterName],
    loads: Sequence[float],
    seeds: int,
    progress: Callable[[str], None],
) -> tuple[float, list[Cell]]:
    """The capacity and the cells, by load and then in the order of the routers."""
    capacity = capacity_per_s(setting, workload, 0)
    progress(f"capacity {capacity:.1f} requests/s")
    cells = []
    for load in loads:
        for router in routers:
            one = replace(setting, router=router, block_tokens=workload.block_tokens)
            runs = []
            for seed in range(seeds):
                progress(f"{router} at {load:.0%}, seed {seed + 1} of {seeds}")
                runs.append(simulate(one, workload.at_rate(load * capacity, seed)).figures())
            cells.append(Cell(router, load, load * capacity, tuple(runs)))
    return capacity, cells


def _at(figures: dict[str, Any], path: Sequence[str]) -> float | None:
    found: Any = figures
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return float(found) if isinstance(found, int | float) else None
