"""Ways to say what a series will be a while from now: two that react, three that know the trend or the season. Pure.

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
from typing import Literal, get_args

from functions.decisions.autoscaling.forecast_season import Season

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
