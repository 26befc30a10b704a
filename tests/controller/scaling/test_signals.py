"""The registry's reports as signals for decisions: unknown is never zero."""

from dataclasses import replace

from functions.controller.autoscaling.signals import PoolUtilization, pool_signals, replicas_of
from tests.controller.scaling.builders import IDLE, POOL, replica, report


def test_replicas_are_counted_by_phase_and_silent_ones_are_not_there() -> None:
    heartbeats = [
        replica(0),
        replica(1, "starting"),
        replica(2, "warm"),
        replica(3, "draining"),
        replica(4, age_s=16.0),
    ]
    known = replicas_of(report(*heartbeats, replica(0, pool="other")), POOL)
    signals = pool_signals(known, IDLE, PoolUtilization(), 5.0)
    assert (signals.ready, signals.starting, signals.warm, signals.draining) == (1, 1, 1, 1)


def test_request_signals_are_unknown_without_gateway_reports() -> None:
    signals = pool_signals([replica()], None, PoolUtilization(), 5.0)
    assert signals.queue_seconds is signals.arrivals_per_s is signals.ttft_p99_s is signals.shed_per_s is None
    assert signals.deferrable_tokens_per_s is None


def test_pool_without_requests_has_no_queue() -> None:
    assert pool_signals([replica()], IDLE, PoolUtilization(), 5.0).ttft_p99_s == 0.0


def test_requests_without_a_first_token_do_not_count_as_fast() -> None:
    asked = replace(IDLE, arrivals_per_s=3.0)
    assert pool_signals([replica()], asked, PoolUtilization(), 5.0).ttft_p99_s is None


def test_kv_signal_is_the_fullest_cache() -> None:
    known = [replica(0, kv_usage_ratio=0.2), replica(1, kv_usage_ratio=0.9), replica(2, "warm", kv_usage_ratio=1.0)]
    assert pool_signals(known, IDLE, PoolUtilization(), 5.0).kv_usage_ratio == 0.9
