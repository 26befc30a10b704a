"""Backoff: doubles, is capped, and resets after a healthy period."""

import pytest

from functions.decisions.health.backoff import BackoffPolicy, delay_s, failures_after

POLICY = BackoffPolicy(base_s=1.0, cap_s=60.0, forget_after_healthy_s=60.0)


def test_doubles_then_caps() -> None:
    assert [delay_s(failures, POLICY) for failures in range(1, 10)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_stays_finite_however_often_it_failed() -> None:
    assert delay_s(10**9, POLICY) == 60.0
    assert delay_s(10**9, BackoffPolicy(base_s=1e-6, cap_s=1e9)) == pytest.approx(2**32 * 1e-6)


def test_healthy_period_resets_the_failures() -> None:
    assert failures_after(5, healthy_s=59.9, policy=POLICY) == 6
    assert failures_after(5, healthy_s=60.0, policy=POLICY) == 1
    assert failures_after(0, healthy_s=0.0, policy=POLICY) == 1
