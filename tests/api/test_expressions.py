"""Expressions: meaning, canonical text, and the exact place of an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api.expressions import (
    ExpressionInvalid,
    HaltCondition,
    Ratio,
    Replicas,
    ScaleRule,
    Seconds,
    Share,
    TimesControl,
    TimesSlo,
    parse_halt,
    parse_scale_rule,
)
from functions.api.expressions.parse import HALT_METRICS, SCALE_METRICS, Dimension, Metric
from functions.api.expressions.values import Comparison

HALTS = [
    ("error_rate > 2%", HaltCondition("error_rate", ">", Ratio(0.02))),
    ("p99_latency > 2x", HaltCondition("p99_latency", ">", TimesControl(2.0))),
    ("p99_ttft>=1.5x", HaltCondition("p99_ttft", ">=", TimesControl(1.5))),
    ("  p99_ttft  >  1.5s ", HaltCondition("p99_ttft", ">", Seconds(1.5))),
    ("p95_inter_token > 80ms", HaltCondition("p95_inter_token", ">", Seconds(0.08))),
    ("p99_inter_token > 80ms", HaltCondition("p99_inter_token", ">", Seconds(0.08))),
    ("error_rate > 0.5%", HaltCondition("error_rate", ">", Ratio(0.005))),
]
RULES = [
    ("p99_ttft > 1.2 * slo for 60s: +10%", ScaleRule("p99_ttft", ">", TimesSlo(1.2), Share(0.1), 60.0)),
    ("queue_seconds > 0.5: +5%", ScaleRule("queue_seconds", ">", Seconds(0.5), Share(0.05), names_seconds=True)),
    ("queue_seconds>500ms:+5%", ScaleRule("queue_seconds", ">", Seconds(0.5), Share(0.05), names_seconds=True)),
    ("kv_usage > 85% for 3m: +5%", ScaleRule("kv_usage", ">", Ratio(0.85), Share(0.05), 180.0)),
    ("utilization < 40% for 15m: -1", ScaleRule("utilization", "<", Ratio(0.4), Replicas(-1), 900.0)),
    ("utilization<=40%:-10%", ScaleRule("utilization", "<=", Ratio(0.4), Share(-0.1))),
]


@pytest.mark.parametrize(("text", "value"), HALTS)
def test_halt_conditions_mean_what_they_say(text: str, value: HaltCondition) -> None:
    assert parse_halt(text) == value


@pytest.mark.parametrize(("text", "value"), RULES)
def test_scale_rules_mean_what_they_say(text: str, value: ScaleRule) -> None:
    assert parse_scale_rule(text) == value


def test_the_contracts_own_expressions_are_canonical() -> None:
    for text in ("error_rate > 2%", "p99_latency > 2x", "error_rate > 1%", "p99_ttft > 1.5x"):
        assert parse_halt(text).text == text
    for text in (
        "p99_ttft > 1.2 * slo for 60s: +10%",
        "queue_seconds > 0.5: +5%",
        "kv_usage > 85% for 3m: +5%",
        "utilization < 40% for 15m: -1",
    ):
        assert parse_scale_rule(text).text == text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("queue_seconds>500ms:+5%", "queue_seconds > 0.5: +5%"),
        ("p99_ttft > 2 * slo for 120s: +1", "p99_ttft > 2 * slo for 2m: +1"),
        ("p99_ttft > 1000ms for 1m: +1", "p99_ttft > 1s for 60s: +1"),
        ("kv_usage > 07.0% for 3600s: +010%", "kv_usage > 7% for 60m: +10%"),
    ],
)
def test_what_means_the_same_has_the_same_text(text: str, canonical: str) -> None:
    assert parse_scale_rule(text).text == canonical


# Numbers with up to six decimals.
milliseconds = st.integers(1, 30 * 24 * 3_600_000)
percents = st.integers(0, 100_000_000).map(lambda millionths: millionths / 100_000_000)
factors = st.integers(1, 10**9).map(lambda millionths: millionths / 1_000_000)
comparisons: st.SearchStrategy[Comparison] = st.sampled_from([">", "<", ">=", "<="])


def _amount(metric: Metric) -> st.SearchStrategy[Ratio] | st.SearchStrategy[Seconds]:
    if metric.dimension is Dimension.RATIO:
        return percents.map(Ratio)
    return milliseconds.map(lambda it: Seconds(it / 1000))


@st.composite
def halts(draw: st.DrawFn) -> HaltCondition:
    metric = draw(st.sampled_from(HALT_METRICS))
    threshold = draw(st.one_of(_amount(metric), factors.map(TimesControl)))
    return HaltCondition(metric.name, draw(comparisons), threshold)


@st.composite
def rules(draw: st.DrawFn) -> ScaleRule:
    metric = draw(st.sampled_from(SCALE_METRICS))
    threshold = draw(st.one_of(_amount(metric), factors.map(TimesSlo)) if metric.has_slo else _amount(metric))
    replicas = st.integers(1, 1000).flatmap(lambda it: st.sampled_from([Replicas(it), Replicas(-it)]))
    shares = st.integers(1, 10_000).flatmap(lambda it: st.sampled_from([Share(it / 10_000), Share(-it / 10_000)]))
    return ScaleRule(
        metric=metric.name,
        comparison=draw(comparisons),
        threshold=threshold,
        step=draw(st.one_of(replicas, shares)),
        hold_s=draw(st.one_of(st.just(0.0), milliseconds.map(lambda it: it / 1000))),
        names_seconds=metric.dimension is Dimension.PLAIN_SECONDS,
    )


@given(halts())
def test_canonical_text_parses_back_to_the_same_value(value: HaltCondition) -> None:
    assert parse_halt(value.text) == value
    assert parse_halt(value.text).text == value.text


@given(rules())
def test_canonical_rules_parse_back_to_the_same_value(value: ScaleRule) -> None:
    assert parse_scale_rule(value.text) == value
    assert parse_scale_rule(value.text).text == value.text


@given(st.text(max_size=60) | st.text(alphabet="p9_tf> <=2%x*slo for:+-m.", max_size=60))
def test_any_text_is_an_expression_or_is_refused_with_a_character_of_its_own(text: str) -> None:
    for parse in (parse_halt, parse_scale_rule):
        try:
            parse(text)
        except ExpressionInvalid as error:
            assert 0 <= error.offset_chars <= len(text)


WRONG_HALTS = [
    ("", 0, "found the end; allowed here: the name of a metric"),
    ("error_rat > 2%", 0, 'did you mean "error_rate"?'),
    (
        "kv_usage > 2%",
        0,
        "allowed: error_rate, p50_latency, p95_latency, p99_latency, p50_ttft, p95_ttft, p99_ttft, "
        "p95_inter_token, p99_inter_token",
    ),
    ("error_rate", 10, "allowed here: > or < (or >=, <=)"),
    ("error_rate = 2%", 11, 'found "= 2%"; allowed here: > or <'),
    ("error_rate > ", 12, "found the end; allowed here: a number"),
    ("error_rate > 2", 13, "allowed: a percentage such as 2%, or a multiple of the control group's such as 2x"),
    ("error_rate > 2s", 13, 'error_rate cannot be compared with "2s"'),
    ("error_rate > 101%", 13, "never above 100%"),
    ("p99_latency > 0x", 14, "allowed: a multiple above 0 and up to 1000"),
    ("p99_latency > 1000.1x", 14, "up to 1000"),
    ("p99_latency > 2 * slo", 14, "allowed: a duration such as 500ms or 2s"),
    ("p99_latency > 0.1ms", 14, "allowed: 1ms to 720h, in whole milliseconds"),
    ("p99_latency > 721h", 14, "allowed: 1ms to 720h"),
    ("p99_latency > 2x for 5m", 17, "allowed here: the end"),
    ("error_rate > -2%", 13, "allowed here: a number"),
    ("é > 2%", 0, "allowed here: the name of a metric"),
    ("x" * 201, 0, "201 characters; allowed: at most 200"),
]


@pytest.mark.parametrize(("text", "offset_chars", "says"), WRONG_HALTS)
def test_a_wrong_condition_is_told_at_its_character(text: str, offset_chars: int, says: str) -> None:
    with pytest.raises(ExpressionInvalid) as caught:
        parse_halt(text)
    assert caught.value.offset_chars == offset_chars
    assert says in str(caught.value)


WRONG_RULES = [
    ("kv_usage > 85%", 14, "allowed here: for and a duration, or : and a step such as +10% or -1"),
    ("kv_usage > 85%: 1", 16, "allowed here: + or -"),
    ("kv_usage > 85%: +0", 16, "a whole number of replicas from 1 to 1000, or a percentage"),
    ("kv_usage > 85%: -101%", 16, "allowed: above 0% and up to 100%"),
    ("kv_usage > 85% for 3: +1", 20, "allowed here: a unit (ms, s, m, h)"),
    ("kv_usage > 2 * slo: +1", 11, "allowed: a percentage such as 2%"),
    ("p99_ttft > 0.5: +1", 11, "or a multiple of the promised bound such as 1.2 * slo"),
    ("p99_ttft > 2x: +1", 11, 'cannot be compared with "2x"'),
    ("queue_seconds > 0.0001: +1", 16, "whole milliseconds"),
    ("error_rate > 2%: +1", 0, "there is no metric"),
]


@pytest.mark.parametrize(("text", "offset_chars", "says"), WRONG_RULES)
def test_a_wrong_rule_is_told_at_its_character(text: str, offset_chars: int, says: str) -> None:
    with pytest.raises(ExpressionInvalid) as caught:
        parse_scale_rule(text)
    assert caught.value.offset_chars == offset_chars
    assert says in str(caught.value)
