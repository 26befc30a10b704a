"""Gateways that know no more of each other than how many they are have one adapter loaded at a time, on average."""

import random

import pytest

from functions.decisions.adapters.cold import PAUSE_MOST_S, next_turn_s


def test_worked_example_of_four_gateways() -> None:
    assert next_turn_s(10.0, 0.2, 4) == pytest.approx(10.6)
    assert next_turn_s(10.0, 0.2, 1) == 10.0


@pytest.mark.parametrize("gateways", [0, -1])
def test_a_count_that_makes_no_sense_holds_nobody_back(gateways: int) -> None:
    assert next_turn_s(10.0, 0.2, gateways) == 10.0


def test_a_load_from_far_away_does_not_make_the_next_one_too_late() -> None:
    assert next_turn_s(10.0, 60.0, 32) == 10.0 + PAUSE_MOST_S


@pytest.mark.parametrize("gateways", [1, 2, 4, 8])
def test_one_load_at_a_time_over_all_gateways(gateways: int) -> None:
    """Loads of any length, gateways that begin whenever they like: mean number of loads at once."""
    rng, until_s, busy_s = random.Random(1), 2000.0, 0.0
    for _ in range(gateways):
        now_s = rng.uniform(0, 1)
        while now_s < until_s:
            took_s = rng.uniform(0.05, 0.4)
            busy_s += took_s
            now_s = next_turn_s(now_s + took_s, took_s, gateways)
    assert busy_s / until_s == pytest.approx(1.0, rel=0.02)
