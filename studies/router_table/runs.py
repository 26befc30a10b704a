"""Pieces of the table: run by one or two processes, saved as lines of a file, resumed after its end.

A line is a capacity (one per seed) or a run. Existing lines are not run again; a truncated last line is. The file
records its sizes, and other sizes are rejected rather than mixed in.

    piece  = a trace at a load with a seed: all its routers, one after the other, on the same requests
    order  = seeds first, then loads, then traces, so that a table is complete after each seed

Neighbours: `trials` makes the requests, `summary` reads the lines.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from functions.simulator.experiment import capacity_per_s, in_time_ratio
from functions.simulator.fleet.outcome import Outcome
from functions.simulator.fleet.simulation import simulate
from studies.router_table.trials import TRIALS, Trial

_SLOWEST = 0.99


class Sizes(msgspec.Struct, frozen=True, tag="sizes"):
    """Sizes common to all lines of a file."""

    requests: int
    seeds: int


class Capacity(msgspec.Struct, frozen=True, tag="capacity"):
    """Capacity for one seed. Each seed has its own requests: another window of a trace has other lengths."""

    trial: str
    seed: int
    per_s: float


class Run(msgspec.Struct, frozen=True, tag="run"):
    trial: str
    router: str
    load_ratio: float
    seed: int
    asked: int
    goodput_ratio: float  # first tokens in time / all requests
    ttft_p50_ms: float | None  # over all requests; None: too many had no first token
    ttft_p99_ms: float | None
    itl_p99_ms: float | None
    hit_ratio: float | None
    cold_starts: int  # requests that waited for an adapter
    busy_ratio: float

    @property
    def key(self) -> tuple[str, str, float, int]:
        return (self.trial, self.router, self.load_ratio, self.seed)


Line = Sizes | Capacity | Run


class ResultsUnusable(ValueError):
    """The file cannot be used; choose another, or give the sizes that this one was made for."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Contents of the table."""

    traces_dir: Path
    trials: tuple[str, ...]
    routers: tuple[str, ...]
    loads: tuple[float, ...]
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class Piece:
    traces_dir: Path
    sizes: Sizes
    trial: Trial
    load_ratio: float
    seed: int
    requests_per_s: float
    routers: tuple[str, ...]


def read_lines(path: Path, sizes: Sizes) -> list[Line]:
    """Return the lines of a file; none if it does not exist yet."""
    if not path.exists():
        return []
    decoder = msgspec.json.Decoder(Line)
    found: list[Line] = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            if number == len(lines):
                break  # truncated while it was written: no line break follows
            raise ResultsUnusable(f"{path}, line {number}: {error}") from error
    if found and found[0] != sizes:
        raise ResultsUnusable(f"{path} was made for {found[0]}, not for {sizes}")
    return found


def run_missing(plan: Plan, path: Path, processes: int, progress: Callable[[str], None]) -> list[Line]:
    """Run what is missing, and return all lines."""
    known = read_lines(path, plan.sizes)
    _write_whole(path, known or [plan.sizes])
    capacities = {(line.trial, line.seed): line.per_s for line in known if isinstance(line, Capacity)}
    with ProcessPoolExecutor(max_workers=processes, mp_context=get_context("spawn")) as pool, path.open("ab") as file:
        for seeds in (range(1), range(1, plan.sizes.seeds)):  # other seeds are searched near the first
            searches = [
                partial(_capacity, plan, name, seed, capacities.get((name, 0)))
                for seed in seeds
                for name in plan.trials
                if (name, seed) not in capacities
            ]
            for found in _each(pool, searches, "capacities", progress):
                capacities[found.trial, found.seed] = found.per_s
                _append(file, [found])
        had = {line.key for line in known if isinstance(line, Run)}
        pieces = [partial(run_piece, piece) for piece in _pieces(plan, capacities, had)]
        for runs in _each(pool, pieces, "pieces", progress):
            _append(file, runs)
    return read_lines(path, plan.sizes)


def run_piece(piece: Piece) -> list[Run]:
    workload = piece.trial.workload(piece.traces_dir, piece.sizes.requests, piece.sizes.seeds)
    found = []
    for router in piece.routers:
        setting = piece.trial.setting(router, workload, piece.seed)
        outcome = simulate(setting, workload.at_rate(piece.requests_per_s, piece.seed))
        found.append(_run_of(piece, router, outcome))
    return found


def _run_of(piece: Piece, router: str, outcome: Outcome) -> Run:
    figures, band = outcome.figures(), outcome.bands[0]
    return Run(
        trial=piece.trial.name,
        router=router,
        load_ratio=piece.load_ratio,
        seed=piece.seed,
        asked=band.asked,
        goodput_ratio=in_time_ratio(outcome, piece.trial.slo_s),
        ttft_p50_ms=_quantile_of_all(outcome, 0.5),
        ttft_p99_ms=_quantile_of_all(outcome, _SLOWEST),
        itl_p99_ms=figures["itl_p99_ms"],
        hit_ratio=figures["hit_ratio"],
        cold_starts=band.cold_starts,
        busy_ratio=figures["utilization_ratio"] or 0.0,
    )


def _quantile_of_all(outcome: Outcome, q: float) -> float | None:
    """Return the quantile over all requests; one without a first token counts as the longest wait."""
    band = outcome.bands[0]
    share = q * band.asked / band.ttft.count if band.ttft.count else 2.0
    return band.ttft.quantile(share) if share <= 1.0 else None


def _capacity(plan: Plan, name: str, seed: int, near_per_s: float | None) -> Capacity:
    trial = TRIALS[name]
    workload = trial.workload(plan.traces_dir, plan.sizes.requests, plan.sizes.seeds)
    setting = trial.setting("oracle", workload, seed)
    return Capacity(name, seed, capacity_per_s(setting, workload, seed, trial.slo_s, near_per_s))


def _pieces(
    plan: Plan, capacities: Mapping[tuple[str, int], float], had: Collection[tuple[str, str, float, int]]
) -> Iterator[Piece]:
    for seed in range(plan.sizes.seeds):
        for load in plan.loads:
            for name in plan.trials:
                routers = tuple(router for router in plan.routers if (name, router, load, seed) not in had)
                if routers:
                    rate = load * capacities[name, seed]
                    yield Piece(plan.traces_dir, plan.sizes, TRIALS[name], load, seed, rate, routers)


Found = TypeVar("Found")


def _each(
    pool: ProcessPoolExecutor, tasks: Sequence[Callable[[], Found]], what: str, progress: Callable[[str], None]
) -> Iterator[Found]:
    futures = [pool.submit(task) for task in tasks]
    try:
        for count, future in enumerate(as_completed(futures), 1):
            yield future.result()
            progress(f"{count} of {len(futures)} {what}")
    finally:
        for future in futures:
            future.cancel()


def _append(file: BinaryIO, lines: Iterable[Line]) -> None:
    file.write(_encoded(lines))
    file.flush()


def _write_whole(path: Path, lines: Iterable[Line]) -> None:
    """Write the file without the truncated line, atomically."""
    whole = path.with_name(path.name + ".new")
    whole.write_bytes(_encoded(lines))
    whole.replace(path)


def _encoded(lines: Iterable[Line]) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
