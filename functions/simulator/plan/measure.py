"""Figures of a run by key: service and latency of each pool and class, and the resources used.

    attained       first tokens within the SLO / all requests, without those that a tenant's own limit rejected
    cost of 1 M    accelerator-hours x price / (prompt and output tokens of what it answered) x 1 M

Worked example (test_cost_of_a_million_tokens): two replicas of one accelerator for an hour at 2.50, 4 M tokens: 5.00
/ 4 M x 1 M = 1.25. `figures` says how each is judged.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from functions.api.ids import PoolName
from functions.decisions.admission.ticket import BANDS
from functions.decisions.capacity.cost import MILLION
from functions.simulator.fleet.outcome import BandOutcome, PoolOutcome
from functions.simulator.fleet.simulation import Simulation
from functions.simulator.plan.comparison import Figure
from functions.simulator.plan.entry import Entry
from functions.simulator.plan.figures import (
    OF_BAND,
    OF_BAND_HERE,
    OF_MODEL,
    OF_ONE_OF_SEVERAL,
    OF_POOL,
    OF_PREFILL,
    Key,
)
from functions.simulator.plan.planned_fleet import PlannedFleet, PlannedPool

OVER_QUOTA = "over_quota"  # the gateway's reason for a tenant's own limit


def figures_for(before: PlannedFleet, after: PlannedFleet) -> dict[Key, Figure]:
    """Return all figures of two fleets by pool and class; figures of a whole pool come last."""
    pools = {pool.name: pool for fleet in (before, after) for pool in fleet.generating}
    several, answering = with_several(before, after), _several_answer(before, after)
    found: dict[Key, Figure] = {}
    for name, pool in sorted(pools.items(), key=_own_first):
        of_band, of_pool = ({}, dict(OF_PREFILL)) if pool.entry.role else (dict(OF_BAND), dict(OF_POOL))
        if pool.model in answering and not pool.entry.role:
            of_band |= OF_BAND_HERE
        if pool.model in several:
            of_pool |= {key: figure for key, figure in OF_ONE_OF_SEVERAL.items() if key in of_pool}
            of_pool |= OF_MODEL if name == pool.model else {}
        found |= {Key(name, band, key): figure for band in BANDS for key, figure in of_band.items()}
        found |= {Key(name, "", key): figure for key, figure in of_pool.items()}
    return found


def _own_first(named: tuple[PoolName, PlannedPool]) -> tuple[str, bool, str]:
    name, pool = named
    return pool.model, name != pool.model, name


def with_several(*fleets: PlannedFleet) -> frozenset[PoolName]:
    """Return the models that have several pools in one of these fleets."""
    return _models(fleet.generating for fleet in fleets)


def _several_answer(*fleets: PlannedFleet) -> frozenset[PoolName]:
    return _models(fleet.answering for fleet in fleets)


def _models(sides: Iterable[Sequence[PlannedPool]]) -> frozenset[PoolName]:
    counts = [Counter(pool.model for pool in pools) for pools in sides]
    return frozenset(model for side in counts for model, count in side.items() if count > 1)


class Meter:
    """An actor that reads the pools' costs at the end of the window. Later only requests in progress remain, and their
    duration would count as cost of a slower side."""

    def __init__(self) -> None:
        self.accelerator_s: dict[PoolName, float] = {}

    def __call__(self, simulation: Simulation) -> None:
        if not self.accelerator_s:
            self.accelerator_s = {name: simulation.accelerator_seconds(name) for name in simulation.pools()}

    def read(self, simulation: Simulation, pool: PoolName) -> float:
        self(simulation)  # needed if the run ended before the window
        return self.accelerator_s[pool]


def measured(
    simulation: Simulation, fleet: PlannedFleet, entry: Entry, meter: Meter, several: Collection[PoolName] = ()
) -> dict[Key, float | None]:
    """Return the figures of a finished run. `several`: models with figures per pool, the same on both sides."""
    found: dict[Key, float | None] = {}
    outcomes = simulation.outcome.pools
    for name in sorted({*(pool.name for pool in fleet.generating), *(pool for pool, _ in entry.no_pool)}):
        pool, outcome = fleet.pool(name), outcomes.get(PoolName(name))
        for index, band in enumerate(BANDS):
            slo = pool.promised_ms(band) if pool is not None else 0.0
            shown = outcome.bands[index] if outcome is not None else BandOutcome(0.0)
            absent, too_long = entry.no_pool[name, index], entry.too_long[name, index]
            found |= {Key(name, band, key): value for key, value in _of_band(shown, slo, absent, too_long)}
        if pool is not None and outcome is not None and any(band.asked for band in outcomes[pool.model].bands):
            found |= {Key(name, "", key): value for key, value in _of_pool(simulation, pool, outcome, meter)}
    for model in sorted({pool.model for pool in fleet.generating}.intersection(several)):
        found |= dict(_of_model(simulation, model, fleet.pools_of(model), meter))
    return found


def _of_model(
    simulation: Simulation, model: PoolName, pools: Sequence[PlannedPool], meter: Meter
) -> Iterator[tuple[Key, float | None]]:
    """Yield each pool's share and latency of the model's answers, and the resources of all its pools."""
    outcomes = [(pool.name, simulation.outcome.pools[pool.name]) for pool in pools if not pool.entry.role]
    for index, band in enumerate(BANDS):
        answered = sum(outcome.answering[index].count for _, outcome in outcomes)
        for name, outcome in outcomes if answered else ():
            ttft = outcome.answering[index]
            yield Key(name, band, "here_ratio"), ttft.count / answered
            yield Key(name, band, "here_ttft_p50_ms"), ttft.quantile(0.5)
            yield Key(name, band, "here_ttft_p99_ms"), ttft.quantile(0.99)
    if not any(band.asked for band in simulation.outcome.pools[model].bands):
        return
    used_s = [(pool, meter.read(simulation, pool.name)) for pool in pools]
    tokens = sum(outcome.answered_tokens for _, outcome in outcomes)
    yield Key(model, "", "model_accelerator_hours"), sum(s / 3600 * pool.engine.accelerators for pool, s in used_s)
    price = sum(s / 3600 * pool.engine.profile.price_per_hour for pool, s in used_s)
    yield Key(model, "", "model_cost_per_million"), price / tokens * MILLION if tokens else None


def _of_band(band: BandOutcome, slo_ms: float | None, absent: int, too_long: int) -> Iterator[tuple[str, float | None]]:
    limited = band.shed[OVER_QUOTA] + too_long
    came = band.asked - band.shed[OVER_QUOTA] + absent
    if not came + limited:
        return
    shed = sum(band.shed.values()) - band.shed[OVER_QUOTA] + absent
    yield "attained_ratio", band.in_time / came if slo_ms is not None and came else None
    yield "ttft_p50_ms", band.ttft.quantile(0.5)
    yield "ttft_p99_ms", band.ttft.quantile(0.99)
    yield "itl_p50_ms", band.answer_gaps.quantile(0.5)
    yield "itl_p99_ms", band.answer_gaps.quantile(0.99)
    yield "shed_ratio", shed / came if came else None
    yield "degraded_ratio", band.degraded / came if came else None
    yield "lost_ratio", sum(band.lost.values()) / came if came else None
    yield "limited_ratio", limited / (came + limited)


def _of_pool(
    simulation: Simulation, pool: PlannedPool, outcome: PoolOutcome, meter: Meter
) -> Iterator[tuple[str, float | None]]:
    past = simulation.lifecycle.past[pool.name]
    window_s, whole_s = meter.read(simulation, pool.name), simulation.accelerator_seconds(pool.name)
    requests = sum(band.asked for band in outcome.bands)
    gap_s = simulation.gaps(pool.name).quantile_s(0.99)
    yield "gap_p99_ms", gap_s * 1000 if gap_s is not None else None
    yield "hit_ratio", past.hit_tokens / past.asked_tokens if past.asked_tokens else None
    yield "cold_ratio", sum(band.cold_starts for band in outcome.bands) / requests if requests else None
    yield "wake_ratio", sum(band.woke for band in outcome.bands) / requests if requests else None
    splits = outcome.splits.total()
    yield "prefilled_ratio", outcome.splits["pays"] / splits if splits else None
    yield "accelerator_hours", window_s / 3600 * pool.engine.accelerators
    yield "busy_ratio", past.busy_s / whole_s if whole_s else None
    if outcome.answered_tokens:
        price = pool.engine.profile.price_per_hour * window_s / 3600
        yield "cost_per_million", price / outcome.answered_tokens * MILLION


# Timeline of a pool over a window, for charts: queue, first tokens and replicas at regular intervals.
#
# `functions.cli.plan` draws both sides.


POINTS = 120  # per window


@dataclass(frozen=True, slots=True)
class Point:
    at_s: float
    queue_s: float | None
    ttft_p99_ms: float | None
    ready: int
    starting: int
    shed_per_s: float | None


class PoolTimelines:
    """An actor that records the timelines."""

    def __init__(self) -> None:
        self.points: dict[PoolName, list[Point]] = defaultdict(list)

    def __call__(self, simulation: Simulation) -> None:
        for name in simulation.pools():
            signals, counts = simulation.signals(name), simulation.counts(name)
            p99_s = signals.ttft_p99_s
            self.points[name].append(
                Point(
                    simulation.now_s,
                    signals.queue_seconds,
                    p99_s * 1000 if p99_s is not None else None,
                    counts.ready,
                    counts.starting,
                    signals.shed_per_s,
                )
            )
