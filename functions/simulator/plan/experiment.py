"""Run both sides of a plan, window by window: same requests, same seed, different configuration.

    play(before, after, traffic, progress) -> Played    figures of each side by window, and one window's timelines

Related modules: `traffic` has the requests, `settings` the fleets, `measure` the figures, `comparison` the judgement.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial

from functions.api.ids import PoolName
from functions.simulator.fleet.simulation import Actor, Simulation
from functions.simulator.fleet.start_times import StartTimes
from functions.simulator.plan.comparison import ComparedFigure, all_compared
from functions.simulator.plan.entry import Entry
from functions.simulator.plan.figures import IN_TIME, Key
from functions.simulator.plan.measure import POINTS, Meter, PoolTimelines, figures_for, measured, with_several
from functions.simulator.plan.planned_fleet import PlannedFleet
from functions.simulator.plan.scaler import scaler_of
from functions.simulator.plan.settings import Beginning, setting_of
from functions.simulator.plan.slos import Promise, Verdict, promise, verdict
from functions.simulator.plan.traffic import PlanTraffic
from functions.simulator.workload.request import WorkloadRequest

_LEAST_EVERY_S = 1.0
Progress = Callable[[str], None]


@dataclass(slots=True)
class Variant:
    """One configuration, with its results in every window."""

    fleet: PlannedFleet
    runs: list[dict[Key, float | None]] = field(default_factory=list)
    timeline: PoolTimelines = field(default_factory=PoolTimelines)  # first window only
    requests: int = 0


@dataclass(frozen=True, slots=True)
class Played:
    before: Variant
    after: Variant
    compared: dict[Key, ComparedFigure]
    promises: tuple[Promise, ...]
    verdict: Verdict

    @property
    def requests(self) -> int:
        """Number of requests on each side."""
        return self.before.requests


class _Window:
    """Requests of one window. They are made once, unless some have followers (`then`): then each side needs its own."""

    def __init__(self, traffic: PlanTraffic, window: int) -> None:
        self._fresh = partial(traffic.requests, window)
        self._rows = list(self._fresh())
        self._is_open = all(request.then is None for request in self._rows)

    def __call__(self) -> Iterable[WorkloadRequest]:
        return self._rows if self._is_open else self._fresh()


def play(before: PlannedFleet, after: PlannedFleet, traffic: PlanTraffic, progress: Progress) -> Played:
    variants = Variant(before), Variant(after)
    several = with_several(before, after)
    for window in range(traffic.windows):
        progress(f"window {window + 1} of {traffic.windows}, requests")
        requests = _Window(traffic, window)
        for name, variant in zip(("before", "after"), variants, strict=True):
            progress(f"window {window + 1} of {traffic.windows}, {name}")
            _run(variant, traffic, requests, window, several)
    compared = all_compared(figures_for(before, after), variants[0].runs, variants[1].runs)
    promises = tuple(_promises(after, before, compared))
    in_time = [each.marked for key, each in compared.items() if key.figure == IN_TIME]
    others = [each.marked for key, each in compared.items() if key.figure != IN_TIME]
    return Played(*variants, compared, promises, verdict(promises, in_time, others))


def _run(variant: Variant, traffic: PlanTraffic, requests: _Window, window: int, several: Collection[PoolName]) -> None:
    is_own = traffic.kind == "recorded"
    entry = Entry(variant.fleet, is_own)
    beginning = Beginning.of(Entry(variant.fleet, is_own).entering(requests()), entry.place)
    actors: list[Actor] = []
    for pool in variant.fleet.generating:
        scaler = scaler_of(pool, StartTimes().of(traffic.start))
        if scaler is not None:
            actors.append((scaler.every_s, scaler))
    if window == 0:
        actors.append((max(_LEAST_EVERY_S, traffic.seconds / POINTS), variant.timeline))
    meter = Meter()
    actors.append((beginning.last_s, meter))
    setting = setting_of(variant.fleet, traffic, beginning, window)
    simulation = Simulation(setting, entry.entering(requests()), actors)
    simulation.run()
    variant.requests += sum(band.asked for band in simulation.outcome.bands)
    variant.requests += entry.no_pool.total() + entry.too_long.total()
    variant.runs.append(measured(simulation, variant.fleet, entry, meter, several))


def _promises(after: PlannedFleet, before: PlannedFleet, compared: dict[Key, ComparedFigure]) -> list[Promise]:
    """Return the promises by pool and band, with the SLO that applies after the change."""
    found = []
    for key, each in compared.items():
        if key.figure != IN_TIME:
            continue
        pool = after.pool(key.pool) or before.pool(key.pool)
        slo_ms = pool.promised_ms(key.band) if pool is not None else None
        made = promise(key.pool, key.band, slo_ms, each) if slo_ms is not None else None
        if made is not None:
            found.append(made)
    return found
