"""A simulated fleet at shares of its capacity: the same workload for each router, over several seeds.

    capacity  = the most requests per second of which IN_TIME_RATIO get their first token in time if the oracle routes
                them without an admission queue; found by bisection. It measures the fleet, not a router, and is
                the same for all routers that are compared
    a cell    = one router at one load; its figures are the median over the seeds, with their range
    oracle    = the router that knows every cache and all work, and picks the replica with the least of:
                  seconds to the request's first token there
                  + seconds to compute its prompt there x (BEHIND + HARM x requests that run there)

The oracle's first term is the delay of the request itself. The second is its cost for others: requests behind it, and
running requests that wait for their next token. The oracle is greedy and knows neither the future nor adapters, so it
is not an upper bound. Of BEHIND 0 and 2 and HARM from 0 to 0.2, over three traces at two loads and three seeds, these
had the least p99: 3.1 s on the Azure trace at 95 %, where HARM 0.1 had 5.1 s.

`functions.simulator.fleet.simulation` runs one cell, `workload` makes the requests; the command `simulate fleet` prints
the table.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import Row
from functions.simulator.fleet.outcome import Outcome
from functions.simulator.fleet.setting import Setting
from functions.simulator.fleet.simulation import SLO_S, simulate
from functions.simulator.router_port import Draws, EngineStates, MakeRouter, Question
from functions.simulator.workload.request import WorkloadRequest
from functions.simulator.workload.synthetic import BLOCK_TOKENS, Traffic, synthetic
from functions.simulator.workload.traces import TraceUnreadable, block_tokens_of, read_trace

BEHIND = 2.0
HARM = 0.02
IN_TIME_RATIO = 0.95
_HALVINGS = 5  # to within 3 %
_NEAR_FACTOR, _NEAR_HALVINGS = 1.25, 3  # to within 3 % as well
_LEAST_PER_S, _MOST_PER_S = 0.01, 1e6


def oracle(engines: EngineStates, rng: Draws) -> "Oracle":
    """Make the oracle; usable as a setting's router."""
    return Oracle(engines)


class Oracle:
    def __init__(self, engines: EngineStates) -> None:
        self._engines = engines

    def pick(self, asked: Question, rows: Sequence[Row], load: OwnLoad) -> Row:
        return min(rows, key=lambda row: self._cost(asked, row))

    def started(self, key: str) -> None:
        """Do nothing: the oracle reads the engines' state."""

    def ended(self, key: str) -> None:
        """Do nothing: the oracle reads the engines' state."""

    def _cost(self, asked: Question, row: Row) -> float:
        engines, replica_id = self._engines, row[0]
        computed = asked.prompt_tokens - engines.cached_tokens(replica_id, asked)
        running = engines.engine(replica_id).running
        waits_s = engines.first_token_s(replica_id, computed)
        return waits_s + (BEHIND + HARM * running) * engines.computing_s(replica_id, computed)


class FleetTooSlow(ValueError):
    """The fleet misses the first-token limit at any rate: allow more time or add replicas."""


class Workload(Protocol):
    """Source of requests at any given rate."""

    @property
    def block_tokens(self) -> int:
        """Size in tokens of the blocks by which prompts are compared."""

    def at_rate(self, requests_per_s: float, seed: int) -> Iterator[WorkloadRequest]:
        """Yield requests in order of time, at `requests_per_s` on average; the same seed yields the same requests."""


@dataclass(frozen=True, slots=True)
class Chats:
    """Synthetic traffic with a given number of requests."""

    traffic: Traffic
    requests: int

    @property
    def block_tokens(self) -> int:
        return BLOCK_TOKENS

    def at_rate(self, requests_per_s: float, seed: int) -> Iterator[WorkloadRequest]:
        seconds = self.requests / requests_per_s
        return synthetic(replace(self.traffic, requests_per_s=requests_per_s, seconds=seconds), seed)


@dataclass(frozen=True, slots=True)
class RecordedWorkload:
    """A trace, played faster or slower; each seed plays a window that starts at another place."""

    path: Path
    requests: int
    seeds: int

    @property
    def block_tokens(self) -> int:
        return block_tokens_of(self.path)

    def at_rate(self, requests_per_s: float, seed: int) -> Iterator[WorkloadRequest]:
        rows = list(self._window(seed))
        if len(rows) < 2:
            raise TraceUnreadable(f"{self.path}: fewer than two requests")
        start_s = rows[0].at_s
        lasts_s = max(1e-3, rows[-1].at_s - start_s)
        factor = (len(rows) / lasts_s) / requests_per_s
        for row in rows:
            row.at_s = (row.at_s - start_s) * factor
            row.pool = row.adapter = None  # this fleet is one pool of base models
            yield row

    def _window(self, seed: int) -> Iterator[WorkloadRequest]:
        total = sum(1 for _ in read_trace(self.path))
        spare = max(0, total - self.requests)
        first = spare * (seed % self.seeds) // max(1, self.seeds - 1) if self.seeds > 1 else 0
        return islice(read_trace(self.path), first, first + self.requests)


@dataclass(frozen=True, slots=True)
class Cell:
    """Results of one router at one load."""

    router: str
    load_ratio: float
    requests_per_s: float
    runs: tuple[dict[str, Any], ...]  # `Outcome.figures`, one per seed

    def middle(self, *path: str) -> float | None:
        """Return the median of one figure over the seeds, or None if no seed has it."""
        found = self.each(*path)
        return median(found) if found else None

    def each(self, *path: str) -> list[float]:
        return [value for run in self.runs if (value := _at(run, path)) is not None]


def capacity_per_s(
    setting: Setting, workload: Workload, seed: int, slo_s: float = SLO_S, near_per_s: float | None = None
) -> float:
    """Return the capacity in requests per second (see the module). `near_per_s`, a rate close to it, saves half the
    runs. Raise FleetTooSlow if no rate is low enough."""
    best = replace(setting, router=oracle, admission=None, block_tokens=workload.block_tokens)
    factor, halvings = (2.0, _HALVINGS) if near_per_s is None else (_NEAR_FACTOR, _NEAR_HALVINGS)
    low = high = near_per_s or 1.0
    while high < _MOST_PER_S and _keeps_up(best, workload, high, seed, slo_s):
        low, high = high, high * factor
    while low >= high and low > _LEAST_PER_S:
        low /= factor
        if not _keeps_up(best, workload, low, seed, slo_s):
            high = low
    if low >= high:
        raise FleetTooSlow(f"at {low:.3f} requests/s under {IN_TIME_RATIO:.0%} have a first token within {slo_s:g} s")
    for _ in range(halvings):
        middle = (low + high) / 2
        if _keeps_up(best, workload, middle, seed, slo_s):
            low = middle
        else:
            high = middle
    return low


def in_time_ratio(outcome: Outcome, slo_s: float) -> float:
    """Return the share of all requests that had their first token within `slo_s`: the goodput; 1 without requests."""
    asked = sum(band.asked for band in outcome.bands)
    in_time = sum(band.ttft.count_up_to(slo_s * 1000) for band in outcome.bands)
    return in_time / asked if asked else 1.0


def _keeps_up(setting: Setting, workload: Workload, requests_per_s: float, seed: int, slo_s: float) -> bool:
    return in_time_ratio(simulate(setting, workload.at_rate(requests_per_s, seed)), slo_s) >= IN_TIME_RATIO


def compare(
    setting: Setting,
    workload: Workload,
    *,
    routers: Mapping[str, MakeRouter | None],
    loads: Sequence[float],
    seeds: int,
    progress: Callable[[str], None],
) -> tuple[float, list[Cell]]:
    """Simulate each router at each load once per seed. Return the capacity in requests per second, and the cells,
    ordered by load and then by router."""
    capacity = capacity_per_s(setting, workload, 0)
    progress(f"capacity {capacity:.1f} requests/s")
    cells = []
    for load in loads:
        for router, make in routers.items():
            one = replace(setting, router=make, block_tokens=workload.block_tokens)
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
