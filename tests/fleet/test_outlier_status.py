"""Ejected replicas of a pool: never most of the pool, and a healthy pool costs nothing to check."""

from functions.api.ids import PoolName, ReplicaId
from functions.decisions.health.ejection import EJECTION_BASE_S, FORGET_AFTER_S, INTERVAL_S, REFUSAL_MS
from functions.fleet.outlier_status import OutlierTracker

POOL = PoolName("base")
READY = [ReplicaId(name) for name in "abcd"]


def out(outliers: OutlierTracker, now_s: float = 0.0) -> list[str]:
    return sorted(outliers.pool_status(POOL, READY, now_s).out)


def test_most_of_a_pool_is_never_out() -> None:
    outliers = OutlierTracker()
    for replica_id in READY[:2]:
        outliers.breaker(POOL, replica_id).eject(0.0)
    assert out(outliers) == ["a", "b"]
    outliers.breaker(POOL, READY[2]).eject(0.0)
    found = outliers.pool_status(POOL, READY, 0.0)
    assert (found.out, found.panic) == (frozenset(), True)
    assert found.penalties_ms == dict.fromkeys(READY[:3], REFUSAL_MS)


def test_unready_replicas_do_not_count() -> None:
    outliers = OutlierTracker()
    for name in ("x", "y", "z"):
        outliers.breaker(POOL, ReplicaId(name)).eject(0.0)
    outliers.breaker(POOL, READY[0]).eject(0.0)
    assert out(outliers) == ["a"]
    assert not outliers.pool_status(POOL, READY, 0.0).panic


def test_healthy_pools_share_one_status() -> None:
    outliers = OutlierTracker()
    assert outliers.pool_status(POOL, READY, 0.0) is outliers.pool_status(PoolName("other"), READY, 1.0)


def test_removed_replica_forgets_its_ejections() -> None:
    outliers = OutlierTracker()
    outliers.breaker(POOL, READY[0]).eject(0.0)
    outliers.forget(POOL, READY[0])
    outliers.forget(POOL, READY[1])
    assert out(outliers) == []
    assert outliers.breaker(POOL, READY[0]).eject(1.0) == EJECTION_BASE_S


def test_long_healthy_replica_is_forgotten() -> None:
    outliers = OutlierTracker()
    outliers.breaker(POOL, READY[0]).eject(0.0)
    outliers.record_answer(POOL, READY[0], 6.0, 7.0)
    outliers.eject_outliers([(POOL, 4)], 7.0)
    assert outliers.pool_status(POOL, READY, 7.0).out == frozenset()
    outliers.eject_outliers([(POOL, 4)], 7.0 + FORGET_AFTER_S)
    assert outliers.pool_status(POOL, READY, 70.0) is OutlierTracker.pool_status(
        outliers, PoolName("other"), READY, 0.0
    )


def test_outliers_are_ejected_up_to_the_cap_and_counted_until_they_are_back() -> None:
    outliers, many = OutlierTracker(), [ReplicaId(f"r{n}") for n in range(8)]

    def misbehave(*names: int) -> None:
        for number, replica_id in enumerate(many):
            seen = outliers.request_counts(POOL, replica_id)
            seen.requests, seen.failures = 100, 90 if number in names else 0

    misbehave(0, 1)
    assert outliers.eject_outliers([(POOL, 8)], 0.0) == ["r0"], "of eight, one"
    misbehave(1)
    assert outliers.eject_outliers([(POOL, 8)], INTERVAL_S / 2) == []
    assert outliers.pool_status(POOL, many, 1.0).out == {"r0"}
    assert outliers.eject_outliers([(POOL, 8)], INTERVAL_S) == ["r1"], "the first one is on probation by then"
