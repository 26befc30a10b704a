"""Forecast methods: two that react, three that know the trend or the season, and the score of each. Pure.

    last      the last bin
    smooth    the mean of the last five bins
    trend     last + the slope of the last five bins (least squares), carried on at 0.7 of its pace
    day       the mean of the last two bins x what is usual then / what is usual now, by the time of the day
    week      the same by the time of the week

Worked example (test_worked_example_of_the_methods): bins of a minute, 100, 102, 104, 106 and 108: five minutes ahead
`smooth` says 104, `trend` 108 + 0.7 x 2 x 5 = 115; where a day usually has 200 now and 260 in five minutes, `day` says
107 x 260 / 200 = 139.1.

Neighbours: `forecast` scores them against what came, and goes by the best.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal, get_args

# Seasonal profile: the usual level by time of the day or of the week, learnt slot by slot.
#
#     a slot's level += 0.4 x (the slot's mean today - its level)        of today at most double counts, at least half
#
# so that one odd day moves a level by at most 40 %, and a change that stays is learnt within days. Between the middles
# of two slots the profile is a straight line. Worked example (test_worked_example_of_a_slot): a slot at 100 that has
# 160 today goes to 124; one that has 900 counts as 200 and goes to 140.


DAY_S = 86_400.0
WEEK_S = 7 * DAY_S
SLOT_S = 600.0
_LEARNT = 0.4
_AT_MOST = 2.0


@dataclass(frozen=True, slots=True)
class Season:
    period_s: float
    slot_s: float = SLOT_S
    levels: tuple[float | None, ...] = ()
    open_slot: int | None = None  # counted since ever
    open_sum: float = 0.0
    open_count: int = 0

    @property
    def slots(self) -> int:
        return round(self.period_s / self.slot_s)

    def with_value(self, at_s: float, value: float) -> "Season":
        slot = int(at_s // self.slot_s)
        if slot == self.open_slot:
            return replace(self, open_sum=self.open_sum + value, open_count=self.open_count + 1)
        closed = self._closed()
        return replace(closed, open_slot=slot, open_sum=value, open_count=1)

    def at(self, at_s: float) -> float | None:
        """What is usual then; None where that is not known yet."""
        if not self.levels:
            return None
        place = at_s / self.slot_s - 0.5
        left = int(place // 1)
        share = place - left
        before, after = self.levels[left % self.slots], self.levels[(left + 1) % self.slots]
        if before is None or after is None:
            return None
        return before + share * (after - before)

    def _closed(self) -> "Season":
        if self.open_slot is None or not self.open_count:
            return self
        mean = self.open_sum / self.open_count
        levels = list(self.levels or (None,) * self.slots)
        place = self.open_slot % self.slots
        level = levels[place]
        if level is None:
            levels[place] = mean
        else:
            heard = min(max(mean, level / _AT_MOST), level * _AT_MOST) if level > 0.0 else mean
            levels[place] = level + _LEARNT * (heard - level)
        return replace(self, levels=tuple(levels))


Method = Literal["last", "smooth", "trend", "day", "week"]
METHODS: tuple[Method, ...] = get_args(Method)
REACTIVE: frozenset[Method] = frozenset({"last", "smooth"})

BIN_S = 60.0
BINS_KEPT = 5
_SMOOTHED = 5
_LATEST = 2
_DAMPED = 0.7
_LEAST_RATIO, _MOST_RATIO = 0.25, 4.0  # of seasons: beyond these one has not been seen often enough


def predictions(
    bins: Sequence[float], ended_s: float, ahead_s: float, *, day: Season, week: Season
) -> tuple[float, ...]:
    """One a method, in the order of METHODS; `bins` are the latest, oldest first, at least one."""
    recent, latest = bins[-_SMOOTHED:], bins[-_LATEST:]
    level, middle_s = sum(latest) / len(latest), ended_s - BIN_S * len(latest) / 2
    then_s = ended_s - BIN_S / 2 + ahead_s
    return (
        bins[-1],
        sum(recent) / len(recent),
        max(0.0, bins[-1] + _DAMPED * _slope(recent) * ahead_s / BIN_S),
        level * _ratio(day, middle_s, then_s),
        level * _ratio(week, middle_s, then_s),
    )


def _slope(values: Sequence[float]) -> float:
    """A bin's worth, by least squares; of fewer than five nothing is said."""
    if len(values) < _SMOOTHED:
        return 0.0
    middle = (len(values) - 1) / 2
    weights = [index - middle for index in range(len(values))]
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(w * w for w in weights)


def _ratio(season: Season, now_s: float, then_s: float) -> float:
    now, then = season.at(now_s), season.at(then_s)
    if now is None or then is None or now <= 0.0:
        return 1.0
    return min(_MOST_RATIO, max(_LEAST_RATIO, then / now))


# Score of a method: its recent share of error, and how far above it the truth may lie.
#
#     WAPE          = sum |came - foreseen| / sum came                    the older ones weigh less: half after 2 hours
#     upper(q)      = foreseen x (1 + the q quantile of (came - foreseen) / foreseen over the last 360)
#     pinball(q)    = q x (came - upper) where more came, (1 - q) x (upper - came) where less; its mean says how good
#                     the upper quantile is: too low is expensive, too high as well
#
# Worked example (test_worked_example_of_a_score): 100 was foreseen four times, and 90, 100, 110, 130 came: WAPE is
# (10 + 0 + 10 + 30) / 430 = 11.6 % where all weigh the same, and upper(0.75) = 110.


KEPT = 360
_LEAST = 1e-9


@dataclass(frozen=True, slots=True)
class Score:
    error_sum: float = 0.0
    came_sum: float = 0.0
    errors: tuple[float, ...] = ()  # relative, the latest last

    @property
    def wape(self) -> float | None:
        """None: nothing has come yet that was foreseen."""
        return self.error_sum / self.came_sum if self.came_sum > _LEAST else None

    def with_outcome(self, foreseen: float, came: float, keep_ratio: float) -> "Score":
        """`keep_ratio`: what the weight of all former ones is multiplied with."""
        relative = (came - foreseen) / foreseen if foreseen > _LEAST else 0.0
        return Score(
            self.error_sum * keep_ratio + abs(came - foreseen),
            self.came_sum * keep_ratio + came,
            (*self.errors, relative)[-KEPT:],
        )

    def upper(self, foreseen: float, quantile: float) -> float:
        """At least `foreseen`."""
        if not self.errors:
            return foreseen
        rank = max(1, ceil(quantile * len(self.errors) - 1e-9))
        return foreseen * (1.0 + max(0.0, sorted(self.errors)[rank - 1]))


def pinball(quantile: float, upper: float, came: float) -> float:
    return quantile * (came - upper) if came >= upper else (1.0 - quantile) * (upper - came)
