"""What the registry knows of pools, as it answers the controller: gateways' sums, and what each replica said last.

A replica here is what deciding on a pool's size needs and no more: of 5,000 replicas that is 1 MB, of their whole
beats 50. Unknown fields are ignored: a newer registry may say more.
"""

from typing import Annotated

import msgspec

from functions.decisions.routing.choice import ReplicaPhase
from functions.fleet.heartbeat import Count, Heartbeat, Millis, Name, Ratio
from functions.fleet.pool_board import PoolSum

REPORT_PATH = "/v1/fleet/pools"
REPORT_MAX_BYTES = 64 * 1024 * 1024
DESIRED_MAX_POOLS = 4096


class ReplicaReport(msgspec.Struct, frozen=True):
    replica_id: Name
    pool: Name
    phase: ReplicaPhase
    running: Count
    waiting: Count
    kv_usage_ratio: Ratio
    decode_tokens_per_s: Annotated[float, msgspec.Meta(ge=0.0)]
    host: Name
    peer_port: Annotated[int, msgspec.Meta(ge=0, le=65535)]
    age_s: float
    service_ms: Millis = 0.0
    asleep: bool = False  # an agent or a registry that does not say so: it is taken to be awake


class PoolReport(msgspec.Struct, frozen=True):
    bus_connected: bool
    pools: dict[str, PoolSum]  # those of which gateways have spoken lately
    replicas: tuple[ReplicaReport, ...]


class DesiredPool(msgspec.Struct, frozen=True):
    """What the autoscaler wants of one pool, for metrics and people."""

    pool: Name
    replicas: Count
    cause: Name


class DesiredPools(msgspec.Struct, frozen=True):
    pools: Annotated[tuple[DesiredPool, ...], msgspec.Meta(max_length=DESIRED_MAX_POOLS)]


def replica_report(beat: Heartbeat, age_s: float) -> ReplicaReport:
    return ReplicaReport(
        replica_id=beat.replica_id,
        pool=beat.pool,
        phase=beat.phase,
        running=beat.running,
        waiting=beat.waiting,
        kv_usage_ratio=beat.kv_usage_ratio,
        decode_tokens_per_s=beat.decode_tokens_per_s,
        host=beat.host,
        peer_port=beat.peer_port,
        age_s=round(age_s, 3),
        service_ms=beat.service_ms,
        asleep=beat.asleep,
    )
