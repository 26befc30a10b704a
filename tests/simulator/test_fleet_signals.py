"""Signals of a pool for the controller: figures of the last seconds, delayed, and never of the future."""

import pytest

from functions.decisions.autoscaling.signals import PoolSignals
from functions.simulator.fleet.setting import POOL
from functions.simulator.fleet.simulation import Simulation
from tests.simulator.rigs import pool, rig, stream


def signals_at(at_s: float, simulation: Simulation) -> PoolSignals:
    seen: list[PoolSignals] = []
    simulation.events.at(at_s, lambda: seen.append(simulation.signals(POOL)))
    simulation.run()
    return seen[0]


def test_signals_match_a_steady_stream() -> None:
    signals = signals_at(30.5, rig(stream(8.0, 40.0), replicas=2))
    assert signals.at_s == pytest.approx(29.0)
    assert signals.arrivals_per_s == pytest.approx(8.0, abs=0.2)
    assert (signals.ready, signals.starting, signals.warm, signals.draining) == (2, 0, 0, 0)
    assert signals.shed_per_s == 0.0
    assert signals.degraded_per_s == 0.0
    assert signals.queue_seconds == 0.0
    assert signals.ttft_p50_s == pytest.approx(0.1, abs=0.05)
    assert signals.arriving_tokens_per_s == pytest.approx(8 * (400 + 104), rel=0.02)  # 100 made, in buckets of 5 %
    assert signals.deferrable_tokens_per_s == 0.0
    assert signals.kv_usage_ratio is not None
    assert 0.0 < signals.kv_usage_ratio < 0.1


def test_last_second_is_not_reported_yet() -> None:
    """Arrivals from 20 s on are reported at 22 s."""
    late = [asked for asked in stream(10.0, 30.0) if asked.at_s > 20.05]
    assert signals_at(20.9, rig(iter(late))).arrivals_per_s == 0.0
    assert (signals_at(22.1, rig(iter(late))).arrivals_per_s or 0.0) > 0.5


def test_signals_are_unknown_at_first() -> None:
    signals = signals_at(0.5, rig(stream(8.0, 3.0), replicas=2))
    assert signals.arrivals_per_s is None
    assert signals.utilization_ratio is None
    assert signals.ready == 2


def test_utilization_is_linear_in_the_load() -> None:
    """Twice the load gives about twice the utilization, long before any request waits."""
    one, two = (signals_at(30.5, rig(stream(per_s, 32.0), replicas=2)).utilization_ratio for per_s in (4.0, 8.0))
    assert one is not None
    assert two is not None
    assert 1.6 < two / one < 2.4


def test_cached_prompts_do_not_count_as_arriving_tokens() -> None:
    same = rig(stream(8.0, 30.0, blocks=(1, 2, 3, 4, 5, 6)), replicas=1)
    signals = signals_at(28.0, same)
    assert signals.arriving_tokens_per_s == pytest.approx(8 * (400 - 384 + 104), rel=0.03)


def test_overload_shows_in_queue_and_shed_signals() -> None:
    signals = signals_at(10.5, rig(stream(60.0, 20.0), replicas=2, ladder=False))
    assert signals.shed_per_s is not None
    assert signals.shed_per_s > 5.0
    assert signals.overflow_per_s == signals.shed_per_s
    assert signals.foreground_queued_tokens == signals.queued_tokens
    assert signals.queue_seconds is not None
    assert signals.queue_seconds > 0.0
    assert signals.queued_tokens
    assert signals.ttft_p99_s is not None
    assert signals.ttft_p99_s > 0.5


def test_ended_replicas_still_count_in_the_sums() -> None:
    drain = (15.0, lambda it: it.drain(it.ready_ids(POOL)[0]))
    signals = signals_at(24.5, rig(stream(4.0, 26.0), drain, pools=(pool(replicas=3),)))
    assert signals.ready == 2
    assert signals.utilization_ratio is not None
    assert 0.0 < signals.utilization_ratio < 1.0
    assert signals.arriving_tokens_per_s == pytest.approx(4 * 504, rel=0.1)
