"""Durations and pool patterns: allowed text, meaning and canonical form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api.kinds.quantities import (
    DURATION_MAX_S,
    chance_ratio,
    chance_text,
    duration_ms,
    duration_s,
    duration_text,
)
from functions.api.kinds.routing_policy import RoutingPolicySpec


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("60s", 60.0), ("5m", 300.0), ("2h", 7200.0), ("720h", DURATION_MAX_S)]
)
def test_durations_mean_what_they_say(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "0s", "05s", "1.5s", "-1s", "5 m", "5min", "1d", "721h", "99999999999s", "5m\n", "٥m", "5M"]
)
def test_any_other_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a whole number and ms, s, m or h, such as 500ms or 5m, up to 720h"):
        duration_ms(text)


@given(st.integers(1, 999_999_999))
def test_canonical_text_means_the_same(milliseconds: int) -> None:
    assert duration_ms(duration_text(milliseconds)) == milliseconds


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (1, "1ms"),
        (1000, "1s"),
        (1500, "1500ms"),
        (60_000, "60s"),
        (180_000, "3m"),
        (3_600_000, "60m"),
        (7_200_000, "2h"),
    ],
)
def test_canonical_text_is_the_largest_unit_of_which_there_are_two(milliseconds: int, text: str) -> None:
    assert duration_text(milliseconds) == text


@pytest.mark.parametrize("pattern", ["*", "llama-*", "llama-3.*", "llama-3-8b", "a"])
def test_patterns_that_a_policy_may_have(pattern: str) -> None:
    assert RoutingPolicySpec.model_validate_json(f'{{"pools": ["{pattern}"]}}').pools == (pattern,)


@pytest.mark.parametrize("pattern", ["", "**", "*b", "a*b", "-*", "Llama-*", "llama/*", "a|b", "[a]*", "a" * 64])
def test_patterns_that_no_policy_may_have(pattern: str) -> None:
    with pytest.raises(ValueError, match="a pool's name, or a prefix of names"):
        RoutingPolicySpec.model_validate_json(f'{{"pools": ["{pattern}"]}}')


def test_a_negative_zero_is_zero_since_what_is_equal_must_have_equal_bytes() -> None:
    spec = RoutingPolicySpec.model_validate_json('{"pools": ["*"], "retry": {"budget": -0.0}}')
    assert str(spec.retry.budget) == "0.0"


@pytest.mark.parametrize(("text", "ratio"), [("1%", 0.01), ("0.5%", 0.005), ("50%", 0.5), ("0.0001%", 0.000001)])
def test_chances_mean_what_they_say(text: str, ratio: float) -> None:
    assert chance_ratio(text) == ratio
    assert chance_text(ratio) == text


@pytest.mark.parametrize(
    "text", ["", "1", "0%", "0.00%", "51%", "100%", "-1%", ".5%", "1 %", "1%%", "1%\n", "1e-3%", "٥%"]
)
def test_any_other_chance_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="above 0% and up to 50%, such as 1% or"):
        chance_ratio(text)
