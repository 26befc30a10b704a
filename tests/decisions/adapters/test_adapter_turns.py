"""Gateways that know only how many they are: on average one adapter loads at a time."""

import random

import pytest

from functions.decisions.adapters.cold import PAUSE_MOST_S, next_turn_s


def test_worked_example_of_four_gateways() -> None:
    assert next_turn_s(10.0, 0.2, 4) == pytest.approx(10.6)
    assert next_turn_s(10.0, 0.2, 1) == 10.0


@pytest.mark.parametrize("gateways", [0, -1])
def test_invalid_gateway_count_causes_no_delay(gateways: int) -> None:
    assert next_turn_s(10.0, 0.2, gateways) == 10.0


def test_slow_load_delays_the_next_turn_by_at_most_the_cap() -> None:
    assert next_turn_s(10.0, 60.0, 32) == 10.0 + PAUSE_MOST_S


@pytest.mark.parametrize("gateways", [1, 2, 4, 8])
def test_one_load_at_a_time_over_all_gateways(gateways: int) -> None:
    """For load times of any length and any start times, the mean number of simultaneous loads is 1."""
    rng, until_s, busy_s = random.Random(1), 2000.0, 0.0
    for _ in range(gateways):
        now_s = rng.uniform(0, 1)
        while now_s < until_s:
            took_s = rng.uniform(0.05, 0.4)
            busy_s += took_s
            now_s = next_turn_s(now_s + took_s, took_s, gateways)
    assert busy_s / until_s == pytest.approx(1.0, rel=0.02)
