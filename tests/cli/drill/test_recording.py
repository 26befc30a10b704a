"""Recordings of drills: promtool series reproduce what Prometheus had, with every series that the alert reads."""

from typing import Any

import pytest

from functions.cli.drill.recording import by_second, name_of, notation, rules_for, selectors, without_idle_buckets
from functions.telemetry.alerting import alerts, groups


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([4, 4, 4, 9, 11, 13, None], "4x2 9+2x2 stale"),
        ([None, None, 1.0], "_x2 1"),
        ([1.0, None, None, None, 0.0], "1 stale _x2 0"),
        ([7, 5, 3], "7-2x2"),
        ([0.1, 0.2, 0.30000000000000004, 0.4], "0.1 0.2 0.3 0.4"),  # adding 0.1 three times does not give 0.3
        ([float("nan"), 1.0], "NaN 1"),
        ([1, 2, 2], "1 2x1"),
        ([], ""),
    ],
)
def test_a_counter_that_stands_still_and_goes_on(values: list[float | None], says: str) -> None:
    assert notation([float(value) if value is not None else None for value in values]) == says


def test_seconds_without_a_sample_are_gaps() -> None:
    assert by_second([(0.0, 1.0), (2.0, 3.0), (9.0, 4.0)], 4) == [1.0, None, 3.0, None]


def bucket(le: str, *values: float, pool: str = "base") -> dict[str, Any]:
    labels = {"__name__": "shoal_gaps_bucket", "pool": pool, "le": le}
    return {"metric": labels, "values": [(float(at), value) for at, value in enumerate(values)]}


def test_of_a_histogram_that_counts_each_bucket_is_kept_and_of_one_that_stands_none() -> None:
    counted, standing = bucket("0.5", 1, 1), bucket("0.5", 4, 4, pool="idle")
    series = [counted, bucket("+Inf", 1, 2), standing, bucket("+Inf", 4, 4, pool="idle")]
    assert without_idle_buckets(series) == series[:2], "the least bucket does not grow, but a quantile needs it"


def test_a_name_is_as_promtool_reads_it() -> None:
    assert name_of({"__name__": "up", "job": 'a"b\\c', "instance": "x:1"}) == 'up{instance="x:1",job="a\\"b\\\\c"}'


def test_what_an_alert_is_evaluated_from() -> None:
    rules = rules_for("HeadOfLinePrefill", groups())
    assert rules[-1]["alert"] == "HeadOfLinePrefill"
    assert {rule["record"] for rule in rules[:-1]} == {
        "shoal:inter_token_seconds:p99_by_pool",
        "shoal:inter_token_seconds:p50_by_pool",
    }
    assert selectors(rules) == ["shoal_inter_token_seconds_bucket"]
    assert selectors(rules_for("GatewayAway", groups())) == ['up{job="shoal-gateway"}']
    assert rules_for("NoSuchAlert", groups()) == []


def test_every_alert_is_evaluated_from_something() -> None:
    assert [alert.name for alert in alerts() if not selectors(rules_for(alert.name, groups()))] == []
