"""Forecast methods: two reactive ones, three with a trend or a season, and the score of each. Pure functions.

    last      the last bin
    smooth    the mean of the last five bins
    trend     last + the slope of the last five bins (least squares), continued at 0.7 of its pace
    day       the mean of the last two bins x the usual level then / the usual level now, by time of day
    week      the same by time of week

Worked example (test_worked_example_of_the_methods): bins of a minute, 100, 102, 104, 106 and 108. Five minutes ahead
`smooth` predicts 104, `trend` 108 + 0.7 x 2 x 5 = 115. If a day usually has 200 now and 260 in five minutes, `day`
predicts 107 x 260 / 200 = 139.1.

Neighbours: `forecast` scores the methods and uses the best.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal, get_args

# Seasonal profile: the usual level by time of day or of week, in slots.
#
#     a slot's level += 0.4 x (the slot's mean today - its level)        today counts at most double, at least half
#
# One odd day moves a level by at most 40 %, and a lasting change is adopted within days. Between the middles of two
# slots the profile is linear. Worked example (test_worked_example_of_a_slot): a slot at 100 with 160 today moves to
# 124; with 900 today, it counts as 200 and moves to 140.


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
    open_slot: int | None = None  # slots since the epoch
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
        """Return the usual level at that time, interpolated between two slots; None if one of them is not known yet."""
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
_LEAST_RATIO, _MOST_RATIO = 0.25, 4.0  # limits of a season's ratio: beyond them the season has too few samples


def predictions(
    bins: Sequence[float], ended_s: float, ahead_s: float, *, day: Season, week: Season
) -> tuple[float, ...]:
    """Return each method's prediction of the level in `ahead_s`, in the order of METHODS. `bins` are the latest ones,
    oldest first, at least one; the last ended at `ended_s`."""
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
    """Return the change per bin by least squares; 0 with fewer than five bins."""
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


# Score of a method: its recent relative error, and how far above the prediction the demand may be.
#
#     WAPE          = sum |came - foreseen| / sum came                    weights halve every 2 hours
#     upper(q)      = foreseen x (1 + the q quantile of (came - foreseen) / foreseen over the last 360)
#     pinball(q)    = q x (came - upper) if more came, (1 - q) x (upper - came) if less; its mean rates the upper
#                     quantile, which may be too low or too high
#
# Worked example (test_worked_example_of_a_score): 100 was predicted four times, and 90, 100, 110 and 130 came. WAPE
# is (10 + 0 + 10 + 30) / 430 = 11.6 % with equal weights, and upper(0.75) = 110.


KEPT = 360
_LEAST = 1e-9


@dataclass(frozen=True, slots=True)
class Score:
    error_sum: float = 0.0
    came_sum: float = 0.0
    errors: tuple[float, ...] = ()  # relative, the latest last

    @property
    def wape(self) -> float | None:
        """Sum of absolute errors divided by the sum of outcomes, recent ones weighted more; None before the first
        scored prediction."""
        return self.error_sum / self.came_sum if self.came_sum > _LEAST else None

    def with_outcome(self, foreseen: float, came: float, keep_ratio: float) -> "Score":
        """Return the score with one more outcome: `foreseen` was predicted, and `came` happened. `keep_ratio`
        multiplies the weight of all earlier ones."""
        relative = (came - foreseen) / foreseen if foreseen > _LEAST else 0.0
        return Score(
            self.error_sum * keep_ratio + abs(came - foreseen),
            self.came_sum * keep_ratio + came,
            (*self.errors, relative)[-KEPT:],
        )

    def upper(self, foreseen: float, quantile: float) -> float:
        """Return the value that `foreseen` reaches at this quantile of the recent relative errors, at least `foreseen`
        itself."""
        if not self.errors:
            return foreseen
        rank = max(1, ceil(quantile * len(self.errors) - 1e-9))
        return foreseen * (1.0 + max(0.0, sorted(self.errors)[rank - 1]))


def pinball(quantile: float, upper: float, came: float) -> float:
    return quantile * (came - upper) if came >= upper else (1.0 - quantile) * (upper - came)
