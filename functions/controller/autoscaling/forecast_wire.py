"""One pool's forecast memory as it lies on disk: the bounds that `decisions.autoscaling.forecast` keeps to, checked on
reading.

Neighbours: `kept_forecasts` has the file.
"""

from typing import Annotated

import msgspec

from functions.decisions.autoscaling.forecast import MOST_AHEAD_BINS, Demand
from functions.decisions.autoscaling.forecast_memory import Memory
from functions.decisions.autoscaling.forecast_methods import BINS_KEPT, METHODS
from functions.decisions.autoscaling.forecast_score import KEPT, Score
from functions.decisions.autoscaling.forecast_season import DAY_S, WEEK_S, Season
from functions.decisions.autoscaling.startup_times import KEPT_STARTS, Source, StartupTimes

Rate = Annotated[float, msgspec.Meta(ge=0.0, le=1e30)]
Error = Annotated[float, msgspec.Meta(ge=-1.0, le=1e30)]
Ratio = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
UnixTime = Annotated[float, msgspec.Meta(ge=0.0, le=1e11)]
Count = Annotated[int, msgspec.Meta(ge=0, le=10**10)]
Each = msgspec.Meta(min_length=len(METHODS), max_length=len(METHODS))  # of the methods


class KeptSeason(msgspec.Struct, frozen=True):
    levels: Annotated[tuple[Rate | None, ...], msgspec.Meta(max_length=Season(WEEK_S).slots)] = ()
    open_slot: Count | None = None
    open_sum: Rate = 0.0
    open_count: Count = 0

    @classmethod
    def of(cls, season: Season) -> "KeptSeason":
        return cls(season.levels, season.open_slot, season.open_sum, season.open_count)

    def season(self, period_s: float) -> Season:
        """ValueError: the levels are not this period's."""
        known = Season(
            period_s,
            levels=self.levels,
            open_slot=self.open_slot,
            open_sum=self.open_sum,
            open_count=self.open_count,
        )
        if len(self.levels) not in (0, known.slots):
            raise ValueError(f"{len(self.levels)} levels of {known.slots}")
        return known


class KeptScore(msgspec.Struct, frozen=True):
    error_sum: Rate = 0.0
    came_sum: Rate = 0.0
    errors: Annotated[tuple[Error, ...], msgspec.Meta(max_length=KEPT)] = ()


class KeptPool(msgspec.Struct, frozen=True, kw_only=True):
    replica_per_s: Rate | None = None
    deferrable_per_s: Rate = 0.0
    looked_s: UnixTime | None = None
    level_per_s: Rate | None = None
    swing_ratio: Ratio = 0.0
    open_bin: Count | None = None
    open_sum: Rate = 0.0
    open_count: Count = 0
    bins: Annotated[tuple[Rate, ...], msgspec.Meta(max_length=BINS_KEPT)] = ()
    day: KeptSeason = KeptSeason()
    week: KeptSeason = KeptSeason()
    scores: Annotated[tuple[KeptScore, ...], Each] = (KeptScore(),) * len(METHODS)
    ahead: Annotated[
        tuple[tuple[Count, Annotated[tuple[Rate, ...], Each]], ...], msgspec.Meta(max_length=MOST_AHEAD_BINS)
    ] = ()
    starts_s: dict[Source, Annotated[tuple[Rate, ...], msgspec.Meta(max_length=KEPT_STARTS)]] = {}

    @classmethod
    def of(cls, memory: Memory) -> "KeptPool":
        demand = memory.demand
        return cls(
            replica_per_s=demand.replica_per_s,
            deferrable_per_s=demand.deferrable_per_s,
            looked_s=demand.looked_s,
            level_per_s=demand.level_per_s,
            swing_ratio=demand.swing_ratio,
            open_bin=demand.open_bin,
            open_sum=demand.open_sum,
            open_count=demand.open_count,
            bins=demand.bins,
            day=KeptSeason.of(demand.day),
            week=KeptSeason.of(demand.week),
            scores=tuple(KeptScore(score.error_sum, score.came_sum, score.errors) for score in demand.scores),
            ahead=demand.ahead,
            starts_s=dict(memory.starts.seen_s),
        )

    def memory(self) -> Memory:
        """ValueError: a profile of another length."""
        demand = Demand(
            replica_per_s=self.replica_per_s,
            deferrable_per_s=self.deferrable_per_s,
            looked_s=self.looked_s,
            level_per_s=self.level_per_s,
            swing_ratio=self.swing_ratio,
            open_bin=self.open_bin,
            open_sum=self.open_sum,
            open_count=self.open_count,
            bins=self.bins,
            day=self.day.season(DAY_S),
            week=self.week.season(WEEK_S),
            scores=tuple(Score(score.error_sum, score.came_sum, score.errors) for score in self.scores),
            ahead=self.ahead,
        )
        starts = StartupTimes()
        for source, times_s in self.starts_s.items():
            for took_s in times_s:
                starts = starts.with_start(source, took_s)
        return Memory(demand, starts)
