"""Utilization of a pool: an unmeasured value is not zero, and one odd heartbeat has little effect."""

from dataclasses import replace

import pytest
from msgspec import structs

from functions.controller.autoscaling.signals import ALONE_S, FALL_S, PoolUtilization, update_utilization
from functions.decisions.autoscaling.policy import STALE_S
from functions.decisions.health.pace import Pace
from functions.fleet.pool_board import ReplicaReport
from tests.controller.scaling.builders import replica


def looks(use: PoolUtilization, seconds: range, *replicas: ReplicaReport) -> PoolUtilization:
    for at_s in seconds:
        use = update_utilization(use, replicas, float(at_s))
    return use


def busy(number: int, rate: float, running: int = 8) -> ReplicaReport:
    return replica(number, running=running, decode_tokens_per_s=rate)


def idle(number: int = 0) -> ReplicaReport:
    return replica(number)


def test_worked_example_of_utilization() -> None:
    alone = looks(PoolUtilization(), range(6), busy(0, 100.0, running=1))
    assert alone.alone_tokens_per_s == 100.0
    seen = PoolUtilization(alone.alone_tokens_per_s)
    assert update_utilization(seen, [idle(0), busy(1, 25.0, running=4)], 9.0).utilization_ratio == pytest.approx(0.375)


def test_utilization_is_smoothed() -> None:
    use = PoolUtilization(100.0, 0.0, at_s=0.0, looked_s=0.0)
    after_30_s = update_utilization(use, [busy(0, 10.0)], 30.0).utilization_ratio
    assert after_30_s == pytest.approx(0.9 * (1 - 0.36788), rel=1e-3)


def test_full_pool_has_unknown_utilization_for_a_new_controller() -> None:
    """No stream runs alone, so the speed of a single stream is unknown; the speed under load must not replace it."""
    assert (
        looks(PoolUtilization(), range(0, 600, 5), *(busy(number, 20.0) for number in range(4))).utilization_ratio
        is None
    )


def test_stored_speed_shows_a_full_pool_at_once() -> None:
    full = [busy(number, 20.0) for number in range(4)]
    assert update_utilization(PoolUtilization(100.0), full, 0.0).utilization_ratio == pytest.approx(0.8)
    assert looks(PoolUtilization(100.0), range(0, 86_400, 5), *full).utilization_ratio == pytest.approx(0.8), (
        "and stays known"
    )


def test_request_is_not_alone_right_after_others_ended() -> None:
    others = looks(PoolUtilization(), range(5), busy(0, 20.0))
    assert update_utilization(others, [busy(0, 20.0, running=1)], 5.0).alone_tokens_per_s == 0.0
    later = looks(others, range(5, 6 + int(ALONE_S)), busy(0, 100.0, running=1))
    assert later.alone_tokens_per_s == 100.0


def test_odd_heartbeat_has_little_and_short_effect() -> None:
    known = looks(PoolUtilization(), range(10), busy(0, 100.0, running=1))
    odd = update_utilization(known, [busy(0, 5000.0, running=1)], 10.0)
    assert 100.0 < odd.alone_tokens_per_s < 105.0
    far_off = replace(known, alone_tokens_per_s=1000.0)
    after = looks(far_off, range(10, 10 + int(5 * FALL_S), 5), busy(0, 100.0, running=1))
    assert after.alone_tokens_per_s == pytest.approx(100.0, rel=0.1)


def test_faster_engine_is_learned_within_minutes() -> None:
    known = looks(PoolUtilization(), range(10), busy(0, 100.0, running=1))
    after = looks(known, range(10, 190), busy(0, 150.0, running=4))
    assert after.alone_tokens_per_s == pytest.approx(150.0, rel=0.01)


def test_engine_without_tokens_does_not_count_as_idle() -> None:
    """Embedding engines have no gaps between tokens, even when busy."""
    three_of_four = [idle(0), *(busy(number, 0.0) for number in (1, 2, 3))]
    use = looks(PoolUtilization(), range(60), *three_of_four)
    assert use.utilization_ratio is None
    assert update_utilization(use, [idle(number) for number in range(4)], 60.0).utilization_ratio is None


@pytest.mark.parametrize("speed", [0.0, 100.0])
def test_old_utilization_expires_while_all_are_busy_and_unmeasured(speed: float) -> None:
    calm = looks(PoolUtilization(speed), range(60), *(idle(number) for number in range(4)))
    assert calm.utilization_ratio == 0.0
    full = [busy(number, 0.0) for number in range(4)]
    assert looks(calm, range(60, 60 + int(STALE_S)), *full).utilization_ratio is not None, "for a while"
    assert looks(calm, range(60, 70 + int(STALE_S)), *full).utilization_ratio is None


def test_heartbeat_without_tokens_reuses_the_last_value() -> None:
    """A long prompt is in prefill beside three streams."""
    use = looks(PoolUtilization(100.0), range(60), busy(0, 20.0), busy(1, 20.0))
    assert update_utilization(use, [busy(0, 0.0), busy(1, 20.0)], 60.0).utilization_ratio == pytest.approx(0.8)


def test_health_probe_request_does_not_hide_an_idle_pool() -> None:
    pool = [idle(number) for number in range(4)]
    use = looks(PoolUtilization(), range(60), *pool)
    caught = update_utilization(use, [replica(0, running=1), *pool[1:]], 60.0)
    assert caught.utilization_ratio == pytest.approx(0.0, abs=0.01)


def reading(number: int, busy_ratio: float | None) -> ReplicaReport:
    pace = Pace(1, 20, 0, 0.0, 0.0, busy_ratio=busy_ratio) if busy_ratio is not None else None
    return structs.replace(replica(number), pace=pace)


def test_prefill_pool_utilization_is_its_busy_ratio() -> None:
    """A prefill pool has no gaps between tokens. Measured by gaps, its utilization was less known the busier it was."""
    use = update_utilization(PoolUtilization(), [reading(0, 0.6), reading(1, 0.2)], 0.0, reads=True)
    assert use.utilization_ratio == pytest.approx(0.4)
    full = PoolUtilization()
    for second in range(600):
        full = update_utilization(full, [reading(0, 1.0), reading(1, 1.0)], float(second), reads=True)
    assert full.utilization_ratio == pytest.approx(1.0) and full.at_s == 599.0


def test_busy_prefill_pool_with_older_agents_has_unknown_utilization() -> None:
    old = [structs.replace(reading(number, None), running=2) for number in range(2)]
    assert update_utilization(PoolUtilization(), old, 0.0, reads=True).utilization_ratio is None


def test_stale_heartbeat_has_unknown_load() -> None:
    assert update_utilization(PoolUtilization(), [replica(age_s=9.0)], 0.0).utilization_ratio is None
