"""Rates learned from engine histograms, the input of routing predictions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.health import engine_rates
from functions.decisions.health.engine_rates import MAX_MS, MIN_MS, EngineRates, RateCounters


def counters(
    finished: float = 0, e2e_s: float = 0, prefill_s: float = 0, tokens: float = 0, running: int = 0
) -> RateCounters:
    return RateCounters(finished, e2e_s, prefill_s, tokens, running)


def test_worked_example_from_the_prologue() -> None:
    rates = engine_rates.update(EngineRates(), counters(finished=10, e2e_s=5.0, running=1))
    rates = engine_rates.update(rates, counters(finished=14, e2e_s=7.0, running=3))
    assert rates.service_ms == pytest.approx(168.08, abs=0.01)


def test_prefill_is_seconds_over_tokens_computed() -> None:
    rates = engine_rates.update(EngineRates(), counters())
    for look in range(1, 40):
        rates = engine_rates.update(rates, counters(finished=look, prefill_s=look * 0.2, tokens=look * 100))
    assert rates.prefill_ms_per_token == pytest.approx(2.0, rel=0.01)


def test_prefill_rate_ignores_prompts_read_elsewhere() -> None:
    """A decode-only engine computes one token of each prompt in 10 ms: it would seem to read at a fiftieth of its
    rate.
    """
    rates = engine_rates.update(EngineRates(), counters())
    rates = engine_rates.update(rates, counters(finished=50, prefill_s=50 * 0.2, tokens=50 * 1000))
    alone = engine_rates.update(rates, counters(finished=90, prefill_s=10.0 + 40 * 0.01, tokens=50_000 + 40))
    assert alone.prefill_ms_per_token == rates.prefill_ms_per_token


def test_first_sample_and_restart_are_ignored() -> None:
    first = engine_rates.update(EngineRates(), counters(finished=1000, e2e_s=9999.0))
    assert first.service_ms == EngineRates().service_ms
    restarted = engine_rates.update(first, counters(finished=3, e2e_s=30.0))
    assert restarted.service_ms == EngineRates().service_ms
    assert restarted.last == counters(finished=3, e2e_s=30.0)


def test_idle_engine_keeps_its_service_time() -> None:
    rates = engine_rates.update(EngineRates(), counters())
    rates = engine_rates.update(rates, counters(finished=50, e2e_s=100.0, running=4))
    assert engine_rates.update(rates, counters(finished=50, e2e_s=100.0)).service_ms == rates.service_ms


def test_prefill_rate_of_an_idle_engine_decays_to_its_best() -> None:
    """A minute of idleness after 200 requests at 0.5 ms a token and 30 at 8 ms brings the rate near its best."""
    rates = engine_rates.update(EngineRates(), counters())
    rates = engine_rates.update(rates, counters(finished=200, prefill_s=10.0, tokens=20_000))
    held_up = counters(finished=230, prefill_s=34.0, tokens=23_000)
    rates = engine_rates.update(rates, held_up)
    assert rates.prefill_ms_per_token > 7.9
    for _ in range(60):
        rates = engine_rates.update(rates, held_up)
    assert 0.5 < rates.prefill_ms_per_token < 1.0


def test_permanently_slower_engine_is_rated_slower() -> None:
    rates = engine_rates.update(EngineRates(), counters(finished=100, prefill_s=5.0, tokens=10_000))
    rates = engine_rates.update(rates, counters(finished=200, prefill_s=10.0, tokens=20_000))
    now = counters(finished=200, prefill_s=10.0, tokens=20_000)
    for _ in range(200):
        now = counters(
            finished=now.finished + 1, prefill_s=now.prefill_s + 0.2, tokens=now.computed_prompt_tokens + 100
        )
        rates = engine_rates.update(rates, now)
    for _ in range(200):
        rates = engine_rates.update(rates, now)
    assert rates.prefill_ms_per_token == pytest.approx(2.0, rel=0.01)


def test_prefill_rate_of_a_busy_engine_does_not_decay() -> None:
    rates = engine_rates.update(EngineRates(), counters(finished=0))
    rates = engine_rates.update(rates, counters(finished=200, prefill_s=10.0, tokens=20_000))
    slow = counters(finished=230, prefill_s=34.0, tokens=23_000, running=1)
    rates = engine_rates.update(rates, slow)
    assert engine_rates.update(rates, slow).prefill_ms_per_token == rates.prefill_ms_per_token


_SUMS = st.floats(0, 1e12, allow_nan=False)
_COUNTERS = st.builds(RateCounters, _SUMS, _SUMS, _SUMS, _SUMS, st.integers(0, 10**6))


@given(st.lists(_COUNTERS, max_size=20))
def test_rates_stay_in_bounds_for_any_counters(looks: list[RateCounters]) -> None:
    rates = EngineRates()
    for look in looks:
        rates = engine_rates.update(rates, look)
        assert MIN_MS <= rates.service_ms <= MAX_MS
        assert MIN_MS <= rates.prefill_ms_per_token <= MAX_MS
