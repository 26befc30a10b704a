"""Sequence numbers in, verdicts out."""

import pytest

from functions.replica.kv_events.watch import Order


def test_worked_example_of_a_restart() -> None:
    noon_s = 43_200.0
    order = Order(42, noon_s + 5)
    assert order.judge(42, noon_s + 6, None) == "next"
    assert order.judge(41, noon_s + 5, replayed_ts_s=noon_s + 5) == "old"
    assert order.judge(44, noon_s + 6, None) == "gap"
    assert order.judge(41, noon_s - 3600, replayed_ts_s=noon_s + 5) == "restart"
    assert order.judge(3, noon_s + 60, None) == "restart"


@pytest.mark.parametrize("ts_s", [-1e9, 0.0, 1e9])
def test_timestamps_do_not_affect_order(ts_s: float) -> None:
    """The new engine's clock may be behind: another machine, or a clock that was set."""
    order = Order(5, 100.0)
    assert order.judge(5, ts_s, None) == "next" and order.judge(6, ts_s, None) == "gap"
    assert all(order.judge(seq, ts_s, None) == "restart" for seq in range(5))


def test_replay_continues_after_known_batches() -> None:
    order = Order(2, 11.0)
    assert order.replay_from == 1 and order.is_same(1, 11.0)
    assert not order.is_same(1, 99.0), "another engine's second batch"
    assert not order.is_same(2, 12.0), "the buffer no longer has it: whether nothing else is missing nobody knows"
    assert Order().replay_from == 0 and Order().is_same(0, 7.0) and not Order().is_same(4, 7.0)
