"""Thresholds (`NAME=VALUE`) and their verdicts, one per threshold. Pure functions on figures from `measured.py`.

A name is a quantity with a statistic. An entry's name before it limits the threshold to that entry:

    ttft_p99_ms=1500  gap_p95_ms=200  stream_mean_ms=8000  whole_max_ms=…     maximum of a time, in ms
    failures=0.0005   refusals=0.05   given_up=0.01                         maximum share of requests or sends
    answers_min=200   answers_per_s_min=5   tokens_per_s_min=100            minimum
    after/ttft_p99_ms=2000                                                  only entries named `after`

A threshold without any measurement counts as broken, because a run without answers must not pass. Locust rounds times
to two digits: 1,540 ms counts as 1,500.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

TIMES = {
    "ttft": "first token of streams",
    "gap": "between a stream's tokens",
    "stream": "streamed answers, whole",
    "whole": "unstreamed answers",
    "embed": "embeddings",
    "job": "batches, from their making to their end",
    "waited": "obeying retry-after",
    "lag": "how late the load generator itself was",
}
RATIOS = ("failures", "refusals", "given_up", "degraded")
LEAST = ("answers_min", "answers_per_s_min", "tokens_per_s_min")
_TIME = re.compile(rf"({'|'.join(TIMES)})_(p\d{{1,2}}(?:\.\d{{1,3}})?|mean|max)_ms")
ALLOWED = (
    f"a quantity of {', '.join(TIMES)} with _p50_ms, _p99_ms, _mean_ms or _max_ms; {', '.join(RATIOS)} as a part of 1; "
    f"{', '.join(LEAST)}; each with NAME/ before it for the entries of one name"
)


class BadThreshold(ValueError):
    """An invalid threshold; the message says what is wrong and what is allowed."""


@dataclass(frozen=True, slots=True)
class Threshold:
    name: str  # as written by the user
    entry: str  # "" means all entries
    quantity: str
    statistic: str  # p99, mean or max; "" for a count or a ratio
    limit: float

    @property
    def is_least(self) -> bool:
        return self.quantity in LEAST


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one entry name; `sum_of` adds several."""

    times: Mapping[str, Mapping[int, int]] = field(default_factory=dict)  # by quantity: ms -> count
    totals_ms: Mapping[str, float] = field(default_factory=dict)
    answers: int = 0  # complete and correct
    failures: int = 0
    refusals: int = 0
    given_up: int = 0
    degraded: int = 0
    tokens: int = 0
    seconds: float = 0.0

    @property
    def requests(self) -> int:
        """Number of requests; one that is sent several times counts once."""
        return self.answers + self.failures + self.given_up


@dataclass(frozen=True, slots=True)
class Verdict:
    threshold: Threshold
    seen: float | None  # None if nothing was measured
    kept: bool


def parse(name: str, value: object) -> Threshold:
    entry, _, what = name.rpartition("/")
    limit = _number(name, value)
    timed = _TIME.fullmatch(what)
    if timed:
        return Threshold(name, entry, timed[1], timed[2], limit)
    if what not in RATIOS + LEAST:
        raise BadThreshold(f"{name}: no such threshold; there are {ALLOWED}")
    if what in RATIOS and limit > 1:
        raise BadThreshold(f"{name}={limit:g} is a part of all requests, between 0 and 1 (5 % is 0.05)")
    return Threshold(name, entry, what, "", limit)


def parse_option(text: str) -> Threshold:
    """Parse `NAME=VALUE` from the command line."""
    name, equals, value = text.partition("=")
    if not equals:
        raise BadThreshold(f"{text!r} is no NAME=VALUE, such as ttft_p99_ms=1500")
    return parse(name.strip(), value.strip())


def judge(thresholds: list[Threshold], by_entry: Mapping[str, Measured]) -> list[Verdict]:
    everything = sum_of(list(by_entry.values()))
    return [_verdict(each, by_entry.get(each.entry, Measured()) if each.entry else everything) for each in thresholds]


def percentile(times: Mapping[int, int], percent: float) -> int:
    """Return the percentile by nearest rank: the least time that `percent` of the requests did not exceed.

    For 100 requests of 1 ms and one of 900 ms, the 99th percentile is 1 and the 99.5th is 900.
    """
    needed = percent * sum(times.values()) / 100 - 1e-9  # floating point: 99.9 % of 1,000 must be 999
    counted = 0
    for time_ms in sorted(times):
        counted += times[time_ms]
        if counted >= needed:
            return time_ms
    return max(times)


def sum_of(several: list[Measured]) -> Measured:
    times: dict[str, dict[int, int]] = {}
    totals_ms: dict[str, float] = {}
    for each in several:
        for quantity, seen in each.times.items():
            into = times.setdefault(quantity, {})
            for time_ms, count in seen.items():
                into[time_ms] = into.get(time_ms, 0) + count
        for quantity, total_ms in each.totals_ms.items():
            totals_ms[quantity] = totals_ms.get(quantity, 0.0) + total_ms
    return Measured(
        times,
        totals_ms,
        answers=sum(each.answers for each in several),
        failures=sum(each.failures for each in several),
        refusals=sum(each.refusals for each in several),
        given_up=sum(each.given_up for each in several),
        degraded=sum(each.degraded for each in several),
        tokens=sum(each.tokens for each in several),
        seconds=max((each.seconds for each in several), default=0.0),
    )


def _verdict(threshold: Threshold, measured: Measured) -> Verdict:
    seen = _seen(threshold, measured)
    if seen is None:
        return Verdict(threshold, None, kept=False)
    return Verdict(threshold, seen, seen >= threshold.limit if threshold.is_least else seen <= threshold.limit)


def _seen(threshold: Threshold, measured: Measured) -> float | None:
    if threshold.statistic:
        times = measured.times.get(threshold.quantity, {})
        return _of_times(threshold.statistic, times, measured.totals_ms.get(threshold.quantity, 0.0)) if times else None
    sends = measured.requests + measured.refusals - measured.given_up  # all sends of a given-up request are in refusals
    parts = {
        "failures": (measured.failures, measured.requests),
        "given_up": (measured.given_up, measured.requests),
        "degraded": (measured.degraded, measured.requests),
        "refusals": (measured.refusals, sends),
        "answers_min": (measured.answers, 1),
        "answers_per_s_min": (measured.answers, measured.seconds),
        "tokens_per_s_min": (measured.tokens, measured.seconds),
    }
    part, whole = parts[threshold.quantity]
    return part / whole if whole else None


def _of_times(statistic: str, times: Mapping[int, int], total_ms: float) -> float:
    if statistic == "mean":
        return total_ms / sum(times.values())
    return float(max(times) if statistic == "max" else percentile(times, float(statistic[1:])))


def _number(name: str, value: object) -> float:
    try:
        limit = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise BadThreshold(f"{name}: {value!r} is no number") from None
    if isinstance(value, bool) or not 0 <= limit < 1e12:
        raise BadThreshold(f"{name}: {value!r} is not a number from 0 to 1e12")
    return limit
