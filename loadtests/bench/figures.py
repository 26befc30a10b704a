"""Figures from samples: medians with their range, ratios within a round, and goals. Pure functions.

A machine is faster in one minute than in the next. Two figures are therefore compared only within a round, in which
they were measured about a minute apart. A ratio is the median of the rounds' ratios, shown with its range.

Worked example (test_a_ratio_is_taken_within_each_round): shoal took 40, 40 and 90 us in three rounds, sglang-router 80,
100 and 180, the third on a busy machine. The ratios are 0.5, 0.4 and 0.5, so 0.50 [0.40-0.50].
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal


@dataclass(frozen=True, slots=True)
class Sample:
    round: int
    contender: str
    figure: str
    value: float


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with its range."""

    middle: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread | None":
        found = sorted(values)
        return cls(median(found), found[0], found[-1]) if found else None


Samples = Mapping[tuple[str, str], Mapping[int, float]]  # (contender, figure) -> round -> value


def by_figure(samples: Iterable[Sample]) -> Samples:
    found: dict[tuple[str, str], dict[int, float]] = {}
    for sample in samples:
        found.setdefault((sample.contender, sample.figure), {})[sample.round] = sample.value
    return found


def spread(samples: Samples, contender: str, figure: str) -> Spread | None:
    return Spread.of(samples.get((contender, figure), {}).values())


def ratio(samples: Samples, contender: str, base: str, figure: str) -> Spread | None:
    """Return `contender` divided by `base`, from the rounds that have both."""
    own, other = samples.get((contender, figure), {}), samples.get((base, figure), {})
    return Spread.of(own[number] / other[number] for number in own if other.get(number))


def added(samples: Samples, contender: str, figure: str, base: str = "direct") -> Spread | None:
    """Return `contender` minus `base`, from the rounds that have both."""
    own, other = samples.get((contender, figure), {}), samples.get((base, figure), {})
    return Spread.of(own[number] - other[number] for number in own if number in other)


@dataclass(frozen=True, slots=True)
class Goal:
    """Upper bound of a figure of shoal's gateway, of its ratio to a peer's, or of its difference from `direct`."""

    words: str
    figure: str
    at_most: float
    kind: Literal["figure", "ratio", "added"] = "figure"
    peer: str = ""


RR, CACHE_AWARE = "sglang-router rr", "sglang-router cache_aware"
GOALS = (
    Goal("CPU per 1 KB request", "request_1k_us", 0.6, "ratio", RR),
    Goal("CPU per 64 KB request", "request_64k_us", 0.9, "ratio", CACHE_AWARE),
    Goal("CPU per 200 KB request", "request_200k_us", 0.9, "ratio", CACHE_AWARE),
    Goal("CPU per chunk at 4,000/s", "chunk_4k_us", 0.85, "ratio", RR),
    Goal("CPU per chunk at 40,000/s", "chunk_40k_us", 0.85, "ratio", RR),
    Goal("RSS per open stream, KiB", "stream_kib", 8.0),
    Goal("added round trip p50, µs", "rtt_p50_us", 80.0, "added"),
    Goal("added round trip p99, µs", "rtt_p99_us", 140.0, "added"),
    Goal("client leaves in prefill, s", "leaving_s", 0.2),
    Goal("client stops reading, KiB", "stalled_kib", 256.0),
)


def reached(samples: Samples, goal: Goal, contender: str = "shoal") -> Spread | None:
    """Return the contender's figure in the goal's unit, or None if the run did not measure it."""
    if goal.kind == "ratio":
        return ratio(samples, contender, goal.peer, goal.figure)
    if goal.kind == "added":
        return added(samples, contender, goal.figure)
    return spread(samples, contender, goal.figure)
