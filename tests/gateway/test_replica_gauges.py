"""Replicas by pool and zone, including those that disappeared."""

from prometheus_client import CollectorRegistry

from functions.api.ids import PoolName
from functions.api.snapshot_entries import PoolEntry
from functions.gateway.replica_gauges import SILENT_FOR_S, ReplicaGauges
from tests.gateway.rig import POOL, Rig, catalogue, heartbeat


def of(gauges: ReplicaGauges, name: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(gauges)
    return registry.get_sample_value(name, labels)


def test_silent_replica_is_counted_for_a_while() -> None:
    """Otherwise its series would end with it, and no alert could report the loss of a node or zone."""
    gauges = ReplicaGauges()
    there = [heartbeat(name, zone="a") for name in ("r0", "r1", "r2")]
    gauges.update([*there, heartbeat("r3", zone="b")], 0.0)
    assert of(gauges, "shoal_zone_replicas", zone="b", state="ready") == 1
    gauges.update(there, 20.0)
    assert of(gauges, "shoal_zone_replicas", zone="b", state="ready") == 0
    assert of(gauges, "shoal_zone_replicas", zone="b", state="silent") == 1
    assert of(gauges, "shoal_pool_replicas", pool=POOL, state="silent") == 1
    gauges.update([*there, heartbeat("r3", zone="b")], 30.0)
    assert of(gauges, "shoal_pool_replicas", pool=POOL, state="silent") == 0
    gauges.update(there, 40.0)
    gauges.update(there, 40.0 + SILENT_FOR_S)
    assert of(gauges, "shoal_pool_replicas", pool=POOL, state="silent") == 0


def test_drained_replica_is_not_counted_as_silent() -> None:
    gauges = ReplicaGauges()
    gauges.update([heartbeat("r0"), heartbeat("r1", phase="draining")], 0.0)
    gauges.update([heartbeat("r0")], 20.0)
    assert of(gauges, "shoal_pool_replicas", pool=POOL, state="silent") == 0


def test_replicas_of_a_removed_pool_are_not_silent() -> None:
    """The controller ended its replicas, which are not lost: `NodeLoss` paged for ten minutes after such a push."""
    gauges = ReplicaGauges()
    other = heartbeat("r1", pool="other")
    gauges.update([heartbeat("r0"), other], 0.0, declared={POOL, "other"})
    gauges.update([heartbeat("r0")], 20.0, declared={POOL, "other"})
    assert of(gauges, "shoal_pool_replicas", pool="other", state="silent") == 1
    gauges.update([heartbeat("r0")], 30.0, declared={POOL})
    assert of(gauges, "shoal_pool_replicas", pool="other", state="silent") is None
    gauges.update([heartbeat("r0")], 40.0, declared={POOL, "other"})
    assert of(gauges, "shoal_pool_replicas", pool="other", state="silent") is None, "one of the same name begins anew"


async def test_pools_in_the_gauges_follow_the_snapshot() -> None:
    other = PoolName("other")
    both = (PoolEntry(POOL, context_window_tokens=2048), PoolEntry(other, context_window_tokens=2048))
    rig = Rig(policies={"pools": both})
    rig.gateway.receive_heartbeat(heartbeat("r1", pool="other"))
    assert _silent_at(rig, other) == 0
    for sequence in range(2, 20):  # the others keep sending: silence of most of a pool is doubted
        rig.clock.forward(1.0)
        rig.gateway.receive_heartbeat(heartbeat("r0", sequence=sequence))
        for name in ("r2", "r3"):
            rig.gateway.receive_heartbeat(heartbeat(name, pool="other", sequence=sequence))
        rig.gateway.sweep()
    assert _silent_at(rig, other) == 1
    rig.gateway.swap(catalogue(epoch=2))
    assert not _silent_at(rig, other)


def _silent_at(rig: Rig, pool: PoolName) -> float | None:
    rig.gauges.scrape()
    registry = rig.gateway.services.metrics.registry
    return registry.get_sample_value("shoal_pool_replicas", {"pool": pool, "state": "silent"})


def test_pool_kv_usage_is_that_of_its_fullest_replica() -> None:
    gauges = ReplicaGauges()
    full = heartbeat("r1", kv_usage_ratio=0.9)
    gauges.update([heartbeat("r0", kv_usage_ratio=0.2), full, heartbeat("r2", kv_usage_ratio=1.0, phase="hung")], 0.0)
    assert of(gauges, "shoal_pool_kv_usage_ratio", pool=POOL) == 0.9
    assert of(gauges, "shoal_replica_service_seconds", pool=POOL, replica="r1") == full.service_ms / 1000
