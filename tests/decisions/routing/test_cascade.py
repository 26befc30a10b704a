"""Uncertainty of a small model's answer, in nats."""

from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import PoolName
from functions.api.snapshot import CascadeEntry
from functions.decisions.routing import cascade

SMALL, LARGE = PoolName("small"), PoolName("large")


def test_worked_example_of_the_prologue() -> None:
    assert cascade.token_entropy([log(0.5), log(0.25)]) == pytest.approx(1.0397, abs=1e-4)


def test_single_option_has_zero_entropy() -> None:
    assert cascade.token_entropy([0.0]) == 0.0
    assert cascade.token_entropy([0.0, -100.0]) == pytest.approx(0.0, abs=1e-9)


def test_equal_options_have_maximal_entropy() -> None:
    assert cascade.token_entropy([log(0.25)] * 4) == pytest.approx(log(4))


@given(st.lists(st.floats(-50, 5), min_size=1, max_size=20))
def test_entropy_is_between_zero_and_its_maximum(logprobs: list[float]) -> None:
    assert -1e-9 <= cascade.token_entropy(logprobs) <= log(len(logprobs) + 1) + 1e-6


@given(st.floats(0.01, 0.99))
def test_remaining_probability_counts_as_one_option(p: float) -> None:
    assert cascade.token_entropy([log(p)]) == pytest.approx(cascade.token_entropy([log(p), log(1 - p)]), abs=1e-6)


def test_mean_and_percentile() -> None:
    entropies = [0.0] * 8 + [1.0, 3.0]
    assert cascade.answer_entropy(entropies, "mean") == pytest.approx(0.4)
    assert cascade.answer_entropy(entropies, "p90") == 1.0
    assert cascade.answer_entropy([], "mean") is None, "nothing is known"


def test_the_first_step_for_the_tier_counts() -> None:
    steps = (CascadeEntry(SMALL, LARGE, ("gold",)), CascadeEntry(SMALL, LARGE, threshold_nats=2.0))
    assert cascade.step_for(steps, SMALL, "gold") == steps[0]
    assert cascade.step_for(steps, SMALL, "free") == steps[1]
    assert cascade.step_for(steps, LARGE, "gold") is None


@given(st.lists(st.floats(0, 5), min_size=1, max_size=50))
def test_higher_threshold_never_escalates_more(doubts: list[float]) -> None:
    rows = cascade.escalations(doubts, [0.0, 0.5, 1.0, 2.0, 5.0])
    assert [row.escalated for row in rows] == sorted((row.escalated for row in rows), reverse=True)
    assert rows[-1].escalated == 0


def test_thresholds_for_target_rates() -> None:
    doubts = [number / 100 for number in range(100)]
    thresholds = cascade.quantile_thresholds(doubts, [0.5, 0.1])
    assert [row.ratio for row in cascade.escalations(doubts, thresholds)] == pytest.approx([0.5, 0.1], abs=0.01)
    assert cascade.quantile_thresholds([], [0.5]) == []
