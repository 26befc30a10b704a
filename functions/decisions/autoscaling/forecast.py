"""What will be asked of a pool by the time a replica that is asked for now would serve. Pure, incremental, bounded.

Each look at the pool adds its arriving tokens to a bin of a minute. When a bin is full, every method foresees the bin
at now + start-up time, and what came is held against what was foreseen for it. The method with the least share of error
of late is gone by: the better of forecast and reaction wins, at every time anew (test_the_better_method_wins).

    demand        = arriving tokens per second / what a replica does per second              in replicas at full work
    a replica's   = arriving tokens per second / (ready x utilization), averaged over looks that can tell
    foreseen      = the larger of the demand of now and of now + start-up time, in the middle and at the upper quantile
    replicas      = `autoscaling_headroom.replicas_needed` of both, and of the swings from look to look

What may wait for minutes (the batch band) counts as its mean over the last five, and needs no room beside it: it is
served in what the others leave (test_a_burst_that_may_wait_needs_no_room).

What a replica does is in this pool's own mix of prompts and answers; when that changes, so does the figure, within
minutes. Where utilization is not known, nothing is foreseen and rules alone decide.

Worked example (test_worked_example_of_a_forecast): 10 ready replicas at 60 % with 30,000 tokens a second: each does
5,000. Nothing changes for half an hour: 30,000 are foreseen, without doubt or swings: m = s = u = 6, and
max(6 / 0.8, 6 / 0.85) = 7.5, 8 replicas.

State: at most 1,008 + 144 slots, 5 x 360 errors and as many bins ahead as a start takes minutes (120 at most).
Neighbours: `forecast_methods` foresee, `forecast_score` scores, `forecast_season` knows days and weeks.
"""

from dataclasses import dataclass, field, replace
from math import ceil, exp, isfinite, sqrt

from functions.decisions.autoscaling.forecast_methods import BIN_S, BINS_KEPT, METHODS, REACTIVE, Method, predictions
from functions.decisions.autoscaling.forecast_score import Score
from functions.decisions.autoscaling.forecast_season import DAY_S, WEEK_S, Season
from functions.decisions.autoscaling.headroom import Need, replicas_needed
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.decisions.autoscaling.signals import PoolSignals

UPPER_QUANTILE = 0.95
MOST_AHEAD_BINS = 120
_HALF_LIFE_S = 7200.0
_TELLING = (0.1, 0.95)  # utilization outside of this says little of what a replica can do
_TURNED_AWAY_RATIO = 0.01
_CAPACITY_LEARNT = 0.05
_SWING_LEARNT = 0.05
_LEVEL_LEARNT = 0.2
_DEFERRED_S = 300.0
_NOW_BINS = 3
_FORGOTTEN_BINS = 30  # without figures: what was just now says nothing any more


@dataclass(frozen=True, slots=True)
class Forecast:
    made_s: float
    horizon_s: float
    replicas: int  # that are needed at some time up to made_s + horizon_s
    demand_per_s: float  # tokens arriving, the upper quantile
    by: Method
    wape: float | None = None  # of that method, of late


@dataclass(frozen=True, slots=True)
class Demand:
    """Everything that is known of one pool's demand. `Demand()` knows nothing."""

    methods: tuple[Method, ...] = METHODS
    replica_per_s: float | None = None  # tokens per second that one replica does at full work
    deferrable_per_s: float = 0.0  # the mean of the last minutes
    looked_s: float | None = None
    level_per_s: float | None = None
    swing_ratio: float = 0.0  # squared, of the level, without what may wait
    open_bin: int | None = None
    open_sum: float = 0.0
    open_count: int = 0
    bins: tuple[float, ...] = ()
    day: Season = field(default_factory=lambda: Season(DAY_S))
    week: Season = field(default_factory=lambda: Season(WEEK_S))
    scores: tuple[Score, ...] = (Score(),) * len(METHODS)
    ahead: tuple[tuple[int, tuple[float, ...]], ...] = ()  # (bin, what each method foresaw for it)

    def best(self) -> Method:
        """The method with the least error of late; before there is any, the plainest."""
        known = [
            (score.wape, index)
            for index, (method, score) in enumerate(zip(METHODS, self.scores, strict=True))
            if score.wape is not None and method in self.methods
        ]
        return METHODS[min(known)[1]] if known else "smooth"


def reactive_only() -> Demand:
    """Goes by what is, never by what is usual."""
    return Demand(methods=tuple(method for method in METHODS if method in REACTIVE))


def learn(demand: Demand, signals: PoolSignals, policy: ScalePolicy) -> Demand:
    """One look at the pool. Figures that are missing, or none, are passed over."""
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


def foresee(demand: Demand, policy: ScalePolicy, now_s: float) -> Forecast | None:
    """None: too little is known yet."""
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
    """One more than a start takes: until the open bin is full, what is foreseen from the last one grows old."""
    return min(ceil(policy.startup_s / BIN_S) + 1, MOST_AHEAD_BINS)


def _with_capacity(demand: Demand, signals: PoolSignals, tokens_per_s: float) -> Demand:
    utilization, least_most = signals.utilization_ratio, _TELLING
    if utilization is None or signals.ready < 1 or not least_most[0] <= utilization <= least_most[1]:
        return demand
    turned_away = (signals.shed_per_s or 0.0) + (signals.degraded_per_s or 0.0)
    if turned_away > _TURNED_AWAY_RATIO * (signals.arrivals_per_s or 0.0):
        return demand  # what arrived is not what the replicas did
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
    """The open bin is over: it is scored, learnt, and the next is foreseen from it."""
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
