"""Recording of a drill's alert inputs in promtool's notation. `tests/telemetry` evaluates rules on recorded drills.

    1x3        1 1 1 1                 stale    the series has ended, here and until the next value
    1+2x3      1 3 5 7                 _x3      no value for three seconds

All functions but `record` are pure. There is one value per second, from LEAD_S before the drill, because rules look
back. Histograms that counted nothing are omitted, since they do not change a quantile.

Worked example (test_a_counter_that_stands_still_and_goes_on): 4 4 4 9 11 13 and then nothing is `4x2 9+2x2 stale`.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from functions.cli.drill.watch import Alerts
from functions.telemetry.alerting import groups

LEAD_S = 40.0
SERIES_MAX = 2000
_DIGITS = 6  # significant digits of a value that is not a whole number
_SELECTOR = re.compile(r"(?<![\w:\"=~.])(shoal_\w+|up)(?![\w:(])(\{[^}]*\})?")
_LEAST_RUN = 2  # a run of equal steps is written as one only if it is longer


async def record(alerts: Alerts, alert: str, began_unix_s: float, ended_s: float) -> dict[str, str]:
    """Return the values by series that the alert reads, both in promtool's notation, at most SERIES_MAX; empty if
    Prometheus does not answer."""
    found: list[dict[str, Any]] = []
    for selector in selectors(rules_for(alert, groups())):
        found += await alerts.range(selector, began_unix_s - LEAD_S, ended_s + LEAD_S)
    length = round(ended_s + LEAD_S) + 1
    return {
        name_of(each["metric"]): notation(by_second(each["values"], length))
        for each in without_idle_buckets(found)[:SERIES_MAX]
    }


def by_second(points: Iterable[tuple[float, float]], length: int) -> list[float | None]:
    values: list[float | None] = [None] * length
    for at_s, value in points:
        if 0 <= round(at_s) < length:
            values[round(at_s)] = value
    return values


def without_idle_buckets(series: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the series without the buckets of histograms that counted nothing."""
    counted: defaultdict[frozenset[tuple[str, str]], bool] = defaultdict(bool)
    for each in series:
        counted[_histogram(each)] |= len({value for _, value in each["values"]}) > 1
    return [each for each in series if "le" not in each["metric"] or counted[_histogram(each)]]


def _histogram(series: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in series["metric"].items() if name != "le")


def name_of(metric: Mapping[str, str]) -> str:
    labels = (f'{name}="{_quoted(value)}"' for name, value in sorted(metric.items()) if name != "__name__")
    return f"{metric.get('__name__', '')}{{{','.join(labels)}}}"


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def notation(values: Sequence[float | None]) -> str:
    parts: list[str] = []
    at = 0
    while at < len(values):
        part, taken = _gap(values, at) if values[at] is None else _run(values, at)
        parts.append(part)
        at += taken
    return " ".join(parts)


def _gap(values: Sequence[float | None], at: int) -> tuple[str, int]:
    """Return the notation of the gap at `at`, and its number of values. A series that ends is marked stale like in
    Prometheus, so its alert clears."""
    taken = next((count for count, value in enumerate(values[at:]) if value is not None), len(values) - at)
    if at == 0:
        return f"_x{taken}", taken
    return ("stale" if taken == 1 or at + taken == len(values) else f"stale _x{taken - 1}"), taken


def _run(values: Sequence[float | None], at: int) -> tuple[str, int]:
    first = values[at]
    second = values[at + 1] if at + 1 < len(values) else None
    assert first is not None
    step = second - first if second is not None else math.nan
    taken = 1
    while at + taken < len(values) and _follows(values[at + taken - 1], values[at + taken], step):
        taken += 1
    if step == 0.0 and taken > 1:
        return f"{_number(first)}x{taken - 1}", taken
    if taken > _LEAST_RUN and step.is_integer():  # fractional steps would add up to another number
        return f"{_number(first)}{step:+.0f}x{taken - 1}", taken
    return _number(first), 1


def _follows(former: float | None, value: float | None, step: float) -> bool:
    return former is not None and value is not None and value - former == step


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return f"{value:.0f}" if value.is_integer() else f"{value:.{_DIGITS}g}"


# Inputs of an alert: the rules that it reads, and the series of processes that these rules read.
# Worked example (test_what_an_alert_is_evaluated_from): `HeadOfLinePrefill` reads two recorded quantiles, and those
# read `shoal_inter_token_seconds_bucket`.


def rules_for(alert: str, groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the alert's rule, preceded by the rules whose series it reads; empty if there is no such alert."""
    rules: list[dict[str, Any]] = [rule for group in groups for rule in group["rules"]]
    found = [rule for rule in rules if rule.get("alert") == alert]
    for rule in found:  # the list grows during the loop
        found += [each for each in rules if each not in found and "record" in each and each["record"] in rule["expr"]]
    return found[::-1]


def selectors(rules: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the selectors of processes' series as the rules write them, without recorded series."""
    return sorted({name + labels for rule in rules for name, labels in _SELECTOR.findall(rule["expr"])})
