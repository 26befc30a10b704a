"""Replicas by pool and zone, and those that are gone."""

from prometheus_client import CollectorRegistry

from functions.gateway.replica_gauges import SILENT_FOR_S, ReplicaGauges
from tests.gateway.world import POOL, heartbeat


def of(gauges: ReplicaGauges, name: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(gauges)
    return registry.get_sample_value(name, labels)


def test_a_replica_that_falls_silent_is_counted_for_a_while() -> None:
    """Its series would have ended with it, and no alert could have told of a node's or a zone's loss."""
    gauges = ReplicaGauges()
    there = [heartbeat(name, zone="a") for name in ("r0", "r1", "r2")]
    gauges.take([*there, heartbeat("r3", zone="b")], 0.0)
    assert of(gauges, "shoal_zone_replicas", zone="b", state="ready") == 1
    gauges.take(there, 20.0)
    assert of(gauges, "shoal_zone_replicas", zone="b", state="ready") == 0
    assert of(gauges, "shoal_zone_replicas", zone="b", state="silent") == 1
    assert of(gauges, "shoal_pool_replicas", pool=POOL, state="silent") == 1
    gauges.take([*there, heartbeat("r3", zone="b")], 30.0)
    assert of(gauges, "shoal_pool_replicas", pool=POOL, state="silent") == 0
    gauges.take(there, 40.0)
    gauges.take(there, 40.0 + SILENT_FOR_S)
    assert of(gauges, "shoal_pool_replicas", pool=POOL, state="silent") == 0


def test_one_that_drained_is_not_lost() -> None:
    gauges = ReplicaGauges()
    gauges.take([heartbeat("r0"), heartbeat("r1", phase="draining")], 0.0)
    gauges.take([heartbeat("r0")], 20.0)
    assert of(gauges, "shoal_pool_replicas", pool=POOL, state="silent") == 0


def test_a_pools_cache_is_as_full_as_its_fullest_replica() -> None:
    gauges = ReplicaGauges()
    full = heartbeat("r1", kv_usage_ratio=0.9)
    gauges.take([heartbeat("r0", kv_usage_ratio=0.2), full, heartbeat("r2", kv_usage_ratio=1.0, phase="hung")], 0.0)
    assert of(gauges, "shoal_pool_kv_usage_ratio", pool=POOL) == 0.9
    assert of(gauges, "shoal_replica_service_seconds", pool=POOL, replica="r1") == full.service_ms / 1000
