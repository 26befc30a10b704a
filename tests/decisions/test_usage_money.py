"""Cost of a pool: what is paid divides into used, lost and idle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.usage.money import PoolCapacity, PoolUse, pool_money


def test_money_of_a_quarter_used_pool() -> None:
    paid = PoolCapacity(60, 3600.0, 14_400.0, 10.0)
    it = pool_money(paid, PoolUse(5_000_000, 3600.0, 2.5, 360.0, 0.25))
    assert (it.idle_accelerator_seconds, it.idle_cost, it.used_ratio) == (10_440.0, 7.25, 0.25)
    assert (it.cost_per_million_tokens, it.break_even_per_million_tokens) == (0.5, 2.0)


def test_a_pool_that_did_nothing_has_no_price() -> None:
    it = pool_money(PoolCapacity(60, 3600.0, 3600.0, 2.5), PoolUse())
    assert (it.cost_per_million_tokens, it.break_even_per_million_tokens, it.idle_cost) == (None, None, 2.5)


def test_use_without_capacity_is_no_negative_idle() -> None:
    it = pool_money(PoolCapacity(), PoolUse(100, 50.0, 1.0))
    assert (it.idle_accelerator_seconds, it.idle_cost, it.used_ratio) == (0.0, 0.0, None)


amounts = st.floats(0.0, 1e9)


@given(amounts, amounts, amounts)
def test_what_is_paid_is_used_lost_or_idle(used: float, lost: float, idle: float) -> None:
    paid = used + lost + idle
    it = pool_money(PoolCapacity(60, paid, paid, paid), PoolUse(1, used, used, lost, lost))
    assert it.used_cost + it.lost_cost + it.idle_cost == pytest.approx(paid, abs=1e-3)
