"""One day of ServeGen's traffic under each autoscaler, in the fluid model of a pool.

    1  the day's requests, second by second, jobs in the batch band (`load`, `jobs`)
    2  the days before it, from which shoal's forecast has learnt (`lessons`)
    3  the oracle's utilization: the highest that meets the targets of 99.9 % of either band
    4  every autoscaler over the same seconds

HPA's target is 75 % of the requests that a replica can serve with this day's mix; KPA's is the number in flight in a
replica at 75 %. Both targets use figures that are unknown in advance. Both are limited to the replicas of `static`,
which serves the day's fullest 15 s at 80 %.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from functions.decisions.autoscaling.forecast import Demand, reactive_only, update_demand
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.decisions.autoscaling.signals import PoolSignals
from functions.simulator.fleet.engine_profile import EngineProfile
from functions.simulator.plan.scaler import OwnScaler
from studies.scaling.day_outcome import DayOutcome
from studies.scaling.fluid_pool import PERIOD_S, Basin, FluidPool
from studies.scaling.jobs import jobs, with_bands
from studies.scaling.load import Load, joined, load_of
from studies.scaling.oracle import STEP_S, best_utilization, plan
from studies.scaling.others import Bounds
from studies.scaling.scaler import HpaScaler, KpaScaler, PlannedScaler, Scaler, ScalerName, StaticScaler
from studies.servegen.clients import Clients, read_clients
from studies.servegen.day import ServeGenDay

# Lessons: earlier days of the same workload, which a scaler's forecast learns from minute by minute.


_LOOK_S = 15
_AT_RATIO = 0.75  # assumed utilization of the pool on those days


def learnt(demand: Demand, policy: ScalePolicy, load: Load, begins_s: float) -> Demand:
    """Return the demand after `load`, which begins at `begins_s` on the day's clock: usually below 0."""
    seconds = load.seconds // _LOOK_S * _LOOK_S
    rows = (load.tokens, load.later[1], load.work_s)
    looks = [row[:seconds].reshape(-1, _LOOK_S).mean(axis=1).tolist() for row in rows]
    for index, (tokens_per_s, later_per_s, work_s) in enumerate(zip(*looks, strict=True)):
        ready = max(1, ceil(work_s / _AT_RATIO))
        signals = PoolSignals(
            at_s=begins_s + (index + 1) * _LOOK_S,
            ready=ready,
            arriving_tokens_per_s=tokens_per_s,
            deferrable_tokens_per_s=later_per_s,
            utilization_ratio=work_s / ready,
        )
        demand = update_demand(demand, signals, policy)
    return demand


DAY_S = 86_400
PROMISED_RATIO = 0.999
_BEGIN_RATIO = 0.75  # utilization of the pool when the day begins
_PEAK_RATIO = 0.8
_OTHERS_RATIO = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Selection of a recorded day; see `workload.servegen`."""

    directory: Path
    pool: str
    day: int
    lessons_days: int
    share_ratio: float  # share of the recorded rate
    seconds: int = DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The day's load, and the load before it."""

    load: Load
    before: Load | None


def known(traffic: Traffic, profile: EngineProfile, progress: Callable[[str], None]) -> Known:
    """Return the load; TraceUnreadable if the recording lacks the day. A client is a job, or none, on all days."""
    today = _clients(traffic, traffic.day, traffic.seconds)
    patient = jobs(today)
    before = []
    for day in range(max(0, traffic.day - traffic.lessons_days), traffic.day):
        progress(f"requests of day {day}, to learn from")
        clients = _clients(traffic, day, DAY_S)
        others = jobs(clients).difference(today.names)
        before.append(_load(traffic, clients, patient | others, profile))
    progress(f"requests of day {traffic.day}")
    return Known(load=_load(traffic, today, patient, profile), before=joined(before) if before else None)


def _clients(traffic: Traffic, day: int, seconds: int) -> Clients:
    return read_clients(traffic.directory, traffic.pool, begins_s=day * DAY_S, seconds=seconds)


def _load(traffic: Traffic, clients: Clients, patient: frozenset[str], profile: EngineProfile) -> Load:
    asked = ServeGenDay(clients=clients)
    if traffic.share_ratio != 1.0:
        rates = [rate for _, rate in asked.rates_per_s()]
        asked = ServeGenDay(clients=clients, requests_per_s=sum(rates) / len(rates) * traffic.share_ratio)
    return load_of(with_bands(asked.requests(0), patient), clients.seconds, profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Common input of all autoscalers."""

    basin: Basin
    policy: ScalePolicy
    known: Known

    @property
    def begins_with(self) -> int:
        load = self.known.load
        return max(1, ceil(float(load.work_s[: min(600, load.seconds)].mean()) / _BEGIN_RATIO))

    def run(
        self, names: Sequence[ScalerName], progress: Callable[[str], None]
    ) -> Iterator[tuple[ScalerName, DayOutcome]]:
        for name in names:
            progress(f"{name}")
            pool = self._pool()
            yield name, pool.run(self._scaler(name, pool))

    def oracle_utilization_ratio(self) -> float:
        def keeps(ratio: float) -> bool:
            outcome = self._pool().run(self._oracle(ratio))
            return min(outcome.attainment_ratio, outcome.later_attainment_ratio) >= PROMISED_RATIO

        return best_utilization(keeps)

    def _pool(self) -> FluidPool:
        return FluidPool(self.basin, self.known.load, self.begins_with)

    def _oracle(self, utilization_ratio: float) -> Scaler:
        startup_s = self.basin.startup_s
        return PlannedScaler(plan(self.known.load, utilization_ratio, startup_s), STEP_S, startup_s)

    def _scaler(self, name: ScalerName, pool: FluidPool) -> Scaler:
        load, policy = self.known.load, self.policy
        bounds = Bounds(least=policy.min_replicas, most=max(policy.min_replicas, self._peak()))
        a_replica_per_s = float(load.requests.sum() / max(1e-9, load.work_s.sum()))
        match name:
            case "shoal" | "reactive":
                return OwnScaler(policy, self._learnt(Demand() if name == "shoal" else reactive_only()))
            case "rules":
                return OwnScaler(policy, None)
            case "static":
                return StaticScaler(self._peak())
            case "oracle":
                return self._oracle(self.oracle_utilization_ratio())
            case "hpa":
                return HpaScaler(_OTHERS_RATIO * a_replica_per_s, bounds)
            case "kpa":
                under_way = _OTHERS_RATIO * a_replica_per_s * self.basin.service_s / (1.0 - _OTHERS_RATIO)
                return KpaScaler(under_way, bounds, lambda: pool.under_way)

    def _peak(self) -> int:
        work_s = self.known.load.work_s
        windows = work_s[: len(work_s) // PERIOD_S * PERIOD_S].reshape(-1, PERIOD_S).mean(axis=1)
        return ceil(float(windows.max()) / _PEAK_RATIO)

    def _learnt(self, demand: Demand) -> Demand:
        before = self.known.before
        return demand if before is None else learnt(demand, self.policy, before, -float(before.seconds))
