"""Sequence numbers in, verdicts out."""

from functions.replica.kv_events.order import Order


def test_worked_example_of_a_restart() -> None:
    noon_s = 43_200.0
    order = Order().after(41, noon_s + 5)
    assert order.judge(42, noon_s + 6) == "next"
    assert order.judge(41, noon_s + 5) == "old"
    assert order.judge(44, noon_s + 6) == "gap"
    assert order.judge(3, noon_s + 60) == "restart"


def test_time_never_goes_back() -> None:
    assert Order().after(0, 10.0).after(1, 4.0).latest_ts_s == 10.0
