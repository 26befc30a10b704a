"""Sequential tests that may be evaluated after every request: rarely wrong at any number of evaluations, and
sensitive.
"""

import random
from math import exp, inf, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.quantile_sketch import QuantileSketch
from functions.decisions.rollout.sequential_test import (
    log_weight,
    lower_bound,
    quantile_above_ms,
    quantile_below_ms,
    upper_bound,
)


def test_worked_example_of_the_prologue() -> None:
    assert exp(log_weight(20, 200, 0.02)) == pytest.approx(2.4e6, rel=0.01)
    assert exp(log_weight(6, 200, 0.02)) == pytest.approx(0.5, abs=0.01)


def test_worked_example_of_a_bound() -> None:
    assert upper_bound(0, 1000, 1 / 1200) == pytest.approx(0.0080, abs=0.0001)


@pytest.mark.parametrize("limit", [0.01, 0.02, 0.5, 0.99])
def test_weight_does_not_grow_on_average_under_the_hypothesis(limit: float) -> None:
    """If exactly `limit` of the requests are events, E[weight after one more request] = weight. Ville's bound follows
    from it.
    """
    for trials, events in ((0, 0), (10, 1), (300, 7)):
        now = exp(log_weight(events, trials, limit))
        done = exp(log_weight(events + 1, trials + 1, limit))
        not_done = exp(log_weight(events, trials + 1, limit))
        assert limit * done + (1 - limit) * not_done == pytest.approx(now, rel=1e-9)


@given(st.integers(0, 500), st.integers(0, 500), st.floats(0.001, 0.999))
def test_more_events_weigh_more_and_a_laxer_limit_less(events: int, others: int, limit: float) -> None:
    trials = events + others
    assert log_weight(events + 1, trials + 1, limit) >= log_weight(events, trials + 1, limit)
    assert log_weight(events, trials, limit) >= log_weight(events, trials, min(1.0, limit * 1.1))


def test_the_edges_of_a_limit() -> None:
    assert log_weight(1, 5, 0.0) == inf
    assert log_weight(0, 5, 0.0) == 0.0
    assert log_weight(5, 5, 1.0) == -inf


@given(st.integers(0, 200), st.integers(0, 200))
def test_bounds_enclose_what_was_seen(events: int, others: int) -> None:
    trials = events + others
    low, high = lower_bound(events, trials, 0.01), upper_bound(events, trials, 0.01)
    assert 0.0 <= low <= (events / trials if trials else 0.5) <= high <= 1.0


def test_evaluation_after_every_request_is_rarely_wrong() -> None:
    """2,000 versions that fail at exactly the limit, each evaluated at 1,000 points. alpha = 5 %: at most 100 expected;
    a fixed test at each point would be wrong for most.
    """
    rng, alpha, wrong = random.Random(7), 0.05, 0
    for _ in range(2000):
        events = 0
        for trials in range(1, 1001):
            events += rng.random() < 0.02
            if trials % 10 == 0 and log_weight(events, trials, 0.02) >= log(1 / alpha):
                wrong += 1
                break
    assert wrong <= 100
    assert wrong > 0, "a test that never errs is blind"


@pytest.mark.parametrize(("true_ratio", "within"), [(0.05, 1500), (0.10, 300), (0.5, 40), (1.0, 5)])
def test_worse_version_is_found(true_ratio: float, within: int) -> None:
    """Count requests until nine of ten bad versions are found, against 2 % with alpha = 1/600."""
    found = []
    for seed in range(50):
        rng, events = random.Random(seed), 0
        for trials in range(1, 5000):
            events += rng.random() < true_ratio
            if log_weight(events, trials, 0.02) >= log(600):
                found.append(trials)
                break
    assert sorted(found)[44] <= within


def filled(rng: random.Random, count: int) -> QuantileSketch:
    sketch = QuantileSketch()
    for _ in range(count):
        sketch.add(100 * rng.lognormvariate(0.0, 0.5))
    return sketch


def test_quantile_bounds_hold_at_every_evaluation() -> None:
    """The 99th percentile of a log-normal around 100 ms is 100 x exp(0.5 x 2.326) = 320 ms."""
    wrong = 0
    for seed in range(200):
        rng, sketch = random.Random(seed), QuantileSketch()
        for _ in range(10):
            sketch.merge(filled(rng, 300))
            high, low = quantile_below_ms(sketch, 0.99, 0.01), quantile_above_ms(sketch, 0.99, 0.01)
            if (high is not None and high < 320) or (low is not None and low > 320):
                wrong += 1
                break
    assert wrong <= 4


def test_a_quantile_of_few_values_has_no_bound() -> None:
    assert quantile_below_ms(filled(random.Random(1), 100), 0.99, 1 / 1200) is None
    assert quantile_below_ms(QuantileSketch(), 0.5, 0.01) is None
    assert quantile_above_ms(QuantileSketch(), 0.5, 0.01) is None


def test_quantile_bounds_tighten() -> None:
    sketch = filled(random.Random(1), 20_000)
    high, low = quantile_below_ms(sketch, 0.99, 1 / 1200), quantile_above_ms(sketch, 0.99, 1 / 1200)
    assert high is not None
    assert low is not None
    assert 320 * 0.8 < low < 320 * 1.02 < high < 320 * 1.2
