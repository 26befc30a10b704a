"""Compare two sides measured with the same seeds: better, worse, or noise. Pure.

Each seed gives one pair of runs with the same requests. So any difference is due to the change, and its spread over
the seeds shows its reliability:

    differences    d_i = after_i - before_i
    interval       mean(d) -+ t x s / sqrt(n)      90 % (Student's t with n - 1 degrees of freedom): a figure that did
                                                   not get worse is called worse once in twenty times
    it matters     if the interval excludes 0 and |mean(d)| is at least the figure's `matters`

Worked example (test_worked_example_of_the_prologue): p99s of 400, 420, 410 before and 440, 470, 445 after differ by
40, 50 and 35: mean 41.7, s 7.64, so 41.7 -+ 2.920 x 7.64 / sqrt(3) = 28.8 to 54.5. That excludes 0, and 41.7 is more
than 2 % of 410: worse.

If the change affects no decision, both sides are equal to the last digit. A figure that some seeds lack on a side (no
request was served) is compared over the seeds that have it on both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Literal, TypeVar

Key = TypeVar("Key")
Marked = Literal["better", "worse", "same"]

_T_95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812,
         1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725)  # fmt: skip
_T_MANY = 1.71


@dataclass(frozen=True, slots=True)
class Interval:
    """90 % interval of the difference. With one seed, both ends are the difference itself."""

    mean: float
    low: float
    high: float

    def excludes_zero(self) -> bool:
        return self.low > 0.0 or self.high < 0.0


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure's name and unit, which direction is better, and from which difference on it matters."""

    name: str
    unit: Literal["ms", "ratio", "hours", "money", "count"]
    lower_is_better: bool | None = True  # None means that neither direction is better
    matters_ratio: float = 0.02  # relative to the value before
    matters_from: float = 0.0  # least difference, in its unit


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    figure: Figure
    before: float | None  # means over the seeds
    after: float | None
    difference: Interval | None
    marked: Marked


def interval_of(differences: Sequence[float]) -> Interval:
    mean = fmean(differences)
    if len(differences) < 2:
        return Interval(mean, mean, mean)
    freedom = len(differences) - 1
    t = _T_95[freedom - 1] if freedom <= len(_T_95) else _T_MANY
    half = t * stdev(differences) / sqrt(len(differences))
    return Interval(mean, mean - half, mean + half)


def compared(figure: Figure, before: Sequence[float | None], after: Sequence[float | None]) -> ComparedFigure:
    """Compare one figure; both sides have one value per seed, in the same order. Seeds that lack one of the two are
    left out."""
    pairs = [(b, a) for b, a in zip(before, after, strict=True) if b is not None and a is not None]
    if not pairs:
        return ComparedFigure(figure, _mean(before), _mean(after), None, "same")
    difference = interval_of([a - b for b, a in pairs])
    was, is_ = fmean(b for b, _ in pairs), fmean(a for _, a in pairs)
    return ComparedFigure(figure, was, is_, difference, _marked(figure, was, difference))


def all_compared(
    figures: Mapping[Key, Figure],
    before: Sequence[Mapping[Key, float | None]],
    after: Sequence[Mapping[Key, float | None]],
) -> dict[Key, ComparedFigure]:
    """Compare all figures of the runs before and after, by key; figures that no run has are left out."""
    found = {}
    for key, figure in figures.items():
        was, is_ = [run.get(key) for run in before], [run.get(key) for run in after]
        if any(value is not None for value in (*was, *is_)):
            found[key] = compared(figure, was, is_)
    return found


def _marked(figure: Figure, was: float, difference: Interval) -> Marked:
    least = max(figure.matters_from, figure.matters_ratio * abs(was))
    if figure.lower_is_better is None or not difference.excludes_zero() or abs(difference.mean) < least:
        return "same"
    return "better" if (difference.mean < 0.0) == figure.lower_is_better else "worse"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
