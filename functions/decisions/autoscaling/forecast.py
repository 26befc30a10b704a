"""Demand forecast of a pool for the time at which a replica started now would serve. Pure, incremental, bounded.

Each call adds the arriving tokens to a bin of one minute. When a bin is full, every method predicts the bin at now +
start-up time, and the arrived demand scores the prediction made for it. The method with the lowest recent error is
used: the better of forecast and reaction wins, chosen anew each time (test_the_better_method_wins).

    demand        = arriving tokens per second / tokens per second of a replica              in replicas at full work
    a replica's   = arriving tokens per second / (ready x utilization), averaged over usable samples
    predicted     = the larger of the demand now and at now + start-up time, as median and as upper quantile
    replicas      = `replicas_needed` (headroom, below) of both, and of the swings between samples

Demand that may wait for minutes (the batch band) counts as its mean over the last five minutes. It needs no headroom
because it uses what the other bands leave (test_deferrable_burst_needs_no_headroom).

A replica's rate is measured for this pool's mix of prompts and answers and follows it within minutes. If the
utilization is unknown there is no forecast, and rules alone decide.

Worked example (test_worked_example_of_a_forecast): 10 ready replicas at 60 % with 30,000 tokens a second: each does
5,000. Nothing changes for half an hour, so 30,000 are predicted without uncertainty or swings: m = s = u = 6, and
max(6 / 0.8, 6 / 0.85) = 7.5, 8 replicas.

State: at most 1,008 + 144 slots, 5 x 360 errors and as many bins ahead as a start takes minutes (120 at most).
Neighbours: `forecast_methods` has the methods, their scores, and the daily and weekly profiles.
"""

from dataclasses import dataclass, field, replace
from math import ceil, exp, hypot, isfinite, sqrt

from functions.decisions.autoscaling.forecast_methods import (
    BIN_S,
    BINS_KEPT,
    DAY_S,
    METHODS,
    REACTIVE,
    WEEK_S,
    Method,
    Score,
    Season,
    predictions,
)
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.decisions.autoscaling.signals import PoolSignals

# Headroom: replicas for a demand's mean and its swings.
#
#     needed = max( m / t ,  ( s + sqrt( (u - s)^2 + (z d)^2 ) ) / f )            rounded up
#
# m is the expected demand in replicas (1 is one replica at full work). s is the part of it that cannot wait, u
# the upper quantile of the prediction for that part, d its standard deviation between samples, z = 2.3. t = 0.8
# is the mean share of its capacity that a replica should use. f = 0.85 is the share that it can sustain for a
# while: its steps grow as 1 / (1 - share), and beyond f first tokens come late. Demand from many independent
# sources swings by the square root of its mean, so the headroom shrinks as a pool grows (square-root staffing),
# down to the part that t leaves free. The two uncertainties add up as squares, since a wrong forecast and a burst
# are independent. Demand that may wait needs no headroom: it is postponed.
#
# Worked example (test_worked_example_of_headroom), nothing may wait: a mean of 30 replicas, swings of 0.7, no
# uncertainty: 30 / 0.8 = 37.5 against (30 + 2.3 x 0.7) / 0.85 = 37.2: 38, at 79 %. With swings of 3 and an upper
# quantile of 33: (30 + sqrt(3^2 + 6.9^2)) / 0.85 = 44.1: 45, at 67 %. A tenth of it, with swings by the square root
# (0.95): 3.75 against (3 + 2.2) / 0.85 = 6.1: 7, at 43 %. If half of the 30 may wait, the other half swings by 3 and
# may become 22: (15 + sqrt(7^2 + 6.9^2)) / 0.85 = 29.2: 38 again.


SWINGS = 2.3
FULL_RATIO = 0.85
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A demand in replicas at full work: m, s, u and d of the formula above."""

    mean: float
    soon: float
    soon_upper: float
    swing: float


def replicas_needed(need: Need, target_utilization_ratio: float) -> int:
    room = hypot(max(0.0, need.soon_upper - need.soon), SWINGS * max(0.0, need.swing))
    wanted = max(0.0, need.mean / target_utilization_ratio, (need.soon + room) / FULL_RATIO)
    return ceil(wanted - _ROUNDING)


UPPER_QUANTILE = 0.95
MOST_AHEAD_BINS = 120
_HALF_LIFE_S = 7200.0
_TELLING = (0.1, 0.95)  # outside of this range, utilization says little about a replica's rate
_TURNED_AWAY_RATIO = 0.01
_CAPACITY_LEARNT = 0.05
_SWING_LEARNT = 0.05
_LEVEL_LEARNT = 0.2
_DEFERRED_S = 300.0
_NOW_BINS = 3
_FORGOTTEN_BINS = 30  # bins without data after which the recent bins are dropped


@dataclass(frozen=True, slots=True)
class Forecast:
    made_s: float
    horizon_s: float
    replicas: int  # needed at some time up to made_s + horizon_s
    demand_per_s: float  # arriving tokens, the upper quantile
    by: Method
    wape: float | None = None  # recent error of that method


@dataclass(frozen=True, slots=True)
class Demand:
    """Everything known about one pool's demand. `Demand()` is empty."""

    methods: tuple[Method, ...] = METHODS
    replica_per_s: float | None = None  # tokens per second of one replica at full work
    deferrable_per_s: float = 0.0  # mean of the last minutes
    looked_s: float | None = None
    level_per_s: float | None = None
    swing_ratio: float = 0.0  # squared, relative to the level, without demand that may wait
    open_bin: int | None = None
    open_sum: float = 0.0
    open_count: int = 0
    bins: tuple[float, ...] = ()
    day: Season = field(default_factory=lambda: Season(DAY_S))
    week: Season = field(default_factory=lambda: Season(WEEK_S))
    scores: tuple[Score, ...] = (Score(),) * len(METHODS)
    ahead: tuple[tuple[int, tuple[float, ...]], ...] = ()  # (bin, the prediction of each method for it)

    def best(self) -> Method:
        """Return the method of this demand with the lowest recent error; `smooth` before any error is known."""
        known = [
            (score.wape, index)
            for index, (method, score) in enumerate(zip(METHODS, self.scores, strict=True))
            if score.wape is not None and method in self.methods
        ]
        return METHODS[min(known)[1]] if known else "smooth"


def reactive_only() -> Demand:
    """Return a demand that uses only the reactive methods, no trends or seasons."""
    return Demand(methods=tuple(method for method in METHODS if method in REACTIVE))


def update_demand(demand: Demand, signals: PoolSignals, policy: ScalePolicy) -> Demand:
    """Return the demand after one sample of signals; unchanged if its token rate is missing or invalid."""
    tokens_per_s = signals.arriving_tokens_per_s
    if tokens_per_s is None or not isfinite(tokens_per_s) or tokens_per_s < 0.0:
        return demand
    demand = _with_capacity(demand, signals, tokens_per_s)
    waits_per_s = min(tokens_per_s, max(0.0, signals.deferrable_tokens_per_s or 0.0))
    demand = _with_deferrable(demand, waits_per_s, signals.at_s)
    demand = _with_swing(demand, tokens_per_s - waits_per_s)
    tokens_per_s += demand.deferrable_per_s - waits_per_s
    now_bin = int(signals.at_s // BIN_S)
    if demand.open_bin == now_bin:
        return replace(demand, open_sum=demand.open_sum + tokens_per_s, open_count=demand.open_count + 1)
    demand = _with_bin(demand, now_bin, _ahead_bins(policy))
    return replace(demand, open_bin=now_bin, open_sum=tokens_per_s, open_count=1)


def forecast_demand(demand: Demand, policy: ScalePolicy, now_s: float) -> Forecast | None:
    """Return the forecast of the replicas needed while one could start; None while too little is known."""
    if demand.replica_per_s is None or demand.replica_per_s <= 0.0 or not demand.bins or demand.open_bin is None:
        return None
    best = demand.best()
    index = METHODS.index(best)
    score = demand.scores[index]
    ended_s = demand.open_bin * BIN_S
    ahead_s = _ahead_bins(policy) * BIN_S
    values = predictions(demand.bins, ended_s, ahead_s, day=demand.day, week=demand.week)
    now_per_s = sum(demand.bins[-_NOW_BINS:]) / len(demand.bins[-_NOW_BINS:])
    then = values[index]
    mean, upper = max(now_per_s, then), max(now_per_s, score.upper(then, UPPER_QUANTILE))
    soon_ratio = 1.0 - min(1.0, demand.deferrable_per_s / now_per_s) if now_per_s > 0.0 else 1.0
    one = demand.replica_per_s
    needed = replicas_needed(
        Need(
            mean=mean / one,
            soon=soon_ratio * mean / one,
            soon_upper=soon_ratio * upper / one,
            swing=sqrt(demand.swing_ratio) * soon_ratio * mean / one,
        ),
        policy.target_utilization_ratio,
    )
    return Forecast(now_s, policy.startup_s, needed, upper, best, score.wape)


def _ahead_bins(policy: ScalePolicy) -> int:
    """Return the number of bins to predict ahead, at most MOST_AHEAD_BINS: one more than a start takes, since the last
    full bin is up to one bin old."""
    return min(ceil(policy.startup_s / BIN_S) + 1, MOST_AHEAD_BINS)


def _with_capacity(demand: Demand, signals: PoolSignals, tokens_per_s: float) -> Demand:
    utilization, least_most = signals.utilization_ratio, _TELLING
    if utilization is None or signals.ready < 1 or not least_most[0] <= utilization <= least_most[1]:
        return demand
    turned_away = (signals.shed_per_s or 0.0) + (signals.degraded_per_s or 0.0)
    if turned_away > _TURNED_AWAY_RATIO * (signals.arrivals_per_s or 0.0):
        return demand  # arrived tokens differ from processed ones
    seen = tokens_per_s / (signals.ready * utilization)
    known = demand.replica_per_s
    if seen <= 0.0:
        return demand
    if known is None:
        return replace(demand, replica_per_s=seen)
    seen = min(max(seen, known / 2), known * 2)
    return replace(demand, replica_per_s=known + _CAPACITY_LEARNT * (seen - known))


def _with_deferrable(demand: Demand, waits_per_s: float, at_s: float) -> Demand:
    if demand.looked_s is None:
        return replace(demand, deferrable_per_s=waits_per_s, looked_s=at_s)
    learnt = 1.0 - exp(-max(0.0, at_s - demand.looked_s) / _DEFERRED_S)
    mean = demand.deferrable_per_s + learnt * (waits_per_s - demand.deferrable_per_s)
    return replace(demand, deferrable_per_s=mean, looked_s=at_s)


def _with_swing(demand: Demand, tokens_per_s: float) -> Demand:
    level = demand.level_per_s
    if level is None or level <= 0.0:
        return replace(demand, level_per_s=tokens_per_s)
    off = min(1.0, abs(tokens_per_s - level) / level)
    return replace(
        demand,
        level_per_s=level + _LEVEL_LEARNT * (tokens_per_s - level),
        swing_ratio=demand.swing_ratio + _SWING_LEARNT * (off * off - demand.swing_ratio),
    )


def _with_bin(demand: Demand, now_bin: int, ahead_bins: int) -> Demand:
    """Return the demand with the open bin closed: score it, add it to the seasons, and predict ahead from it. After a
    gap too long, drop all bins instead."""
    over = demand.open_bin
    if over is None or not demand.open_count:
        return demand
    if not 0 < now_bin - over <= _FORGOTTEN_BINS:
        return replace(demand, bins=(), ahead=())
    value, middle_s = demand.open_sum / demand.open_count, (over + 0.5) * BIN_S
    demand = _scored(demand, over, value)
    bins = (*demand.bins, value)[-BINS_KEPT:]
    day, week = demand.day.with_value(middle_s, value), demand.week.with_value(middle_s, value)
    foreseen = predictions(bins, (over + 1) * BIN_S, ahead_bins * BIN_S, day=day, week=week)
    ahead = (*demand.ahead, (over + ahead_bins, foreseen))[-MOST_AHEAD_BINS:]
    return replace(demand, bins=bins, day=day, week=week, ahead=ahead)


def _scored(demand: Demand, this_bin: int, came: float) -> Demand:
    due = [foreseen for when, foreseen in demand.ahead if when == this_bin]
    kept = tuple(entry for entry in demand.ahead if entry[0] > this_bin)
    if not due:
        return replace(demand, ahead=kept)
    keep_ratio = 0.5 ** (BIN_S / _HALF_LIFE_S)
    scores = tuple(
        score.with_outcome(foreseen, came, keep_ratio) for score, foreseen in zip(demand.scores, due[-1], strict=True)
    )
    return replace(demand, ahead=kept, scores=scores)
