"""The registry's view of pools: the last heartbeat of each gateway, their sum, and the report for the controller.

State is bounded, and heartbeats expire after a few seconds. A gateway that is silent for longer is not part of the
sum. A pool that is in no heartbeat has no sum, because an unknown pool must not look like one without requests. The
report has only the replica fields that sizing a pool needs: 1 MB for 5,000 replicas, compared with 50 MB for whole
heartbeats.

Worked example (test_two_gateways_are_added): one gateway reports 60 arrivals in 30 s, another 10 in 10 s (it has just
started): 2 + 1 = 3 arrivals a second. Their sketches are merged; the longest expected wait counts.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import msgspec

from functions.decisions.health.pace import Pace
from functions.decisions.overload.ladder import RUNGS, RungName
from functions.decisions.quantile_sketch import QuantileSketch
from functions.decisions.routing.choice import ReplicaPhase
from functions.fleet.heartbeat import ColdStages, Count, Heartbeat, Host, Millis, Name, Ratio
from functions.fleet.pool_heartbeat import (
    PoolDemand,
    PoolHeartbeat,
    PoolHeartbeatInvalid,
    PoolStats,
    UnmetNeed,
    decode,
)

HEARD_FOR_S = 5.0  # five heartbeats
NEEDS_FOR_S = 30.0  # a gateway sends its needs every ten seconds
MAX_GATEWAYS = 1024
MAX_POOLS = 4096  # per gateway
MAX_LACKING = 1024  # all gateways together
REPORT_PATH = "/v1/fleet/pools"
REPORT_MAX_BYTES = 64 * 1024 * 1024
DESIRED_MAX_POOLS = 4096


@dataclass(frozen=True, slots=True)
class PoolSum:
    """Sum over all gateways of one pool's statistics."""

    gateways: int
    arrivals_per_s: float
    arriving_tokens_per_s: float
    shed_per_s: float
    degraded_per_s: float
    queue_s: float
    queued_tokens: int
    ttft_p50_s: float | None  # None if no interactive request received a first token
    ttft_p99_s: float | None
    gap_p99_s: float | None
    deferrable_tokens_per_s: float = 0.0  # part of the arriving tokens: the batch band's
    overflow_per_s: float = 0.0  # part of the shed requests: for lack of capacity, and not batch
    foreground_queued_tokens: int = 0  # part of the queued tokens: those that are not batch
    rungs: tuple[RungName, ...] = ()  # overload ladder steps in force at any gateway
    why: str = ""
    waking: int = 0  # requests that wait for the pool's first replica
    open_requests: int = 0  # for a pool that may be at zero: requests that it has
    ttft_p95_s: float | None = None
    gap_p95_s: float | None = None


class Lacking(msgspec.Struct, frozen=True):
    """One need that gateways cannot meet."""

    what: str
    subject: str
    gateways: int  # number of gateways that report it
    why: str = ""  # the reason that one of them gives


@dataclass(frozen=True, slots=True)
class GatewayNeeds:
    """Things that gateways lack to apply the policies, over all gateways."""

    gateways: int  # gateways that have reported recently what they lack, if anything
    lacking: tuple[Lacking, ...] = ()


@dataclass(slots=True)
class _Needs:
    heard_s: float
    needs: tuple[UnmetNeed, ...]


@dataclass(slots=True)
class _Demand:
    heard_s: float
    order: tuple[int, int]  # incarnation, sequence
    pools: tuple[PoolDemand, ...]


@dataclass(slots=True)
class _Said:
    order: tuple[int, int]  # incarnation, sequence
    heard_s: float
    stats: PoolStats


class PoolBoard:
    """Collect gateways' heartbeats. Owned by one event loop. Times are monotonic seconds, passed as arguments."""

    def __init__(self) -> None:
        self._gateways: dict[str, dict[str, _Said]] = {}
        self._needs: dict[str, _Needs] = {}
        self._demand: dict[str, _Demand] = {}
        self.refused_total = 0

    def receive_message(self, message: bytes, now_s: float) -> bool:
        """Record a message from the bus; return False if it is no heartbeat, or its gateway exceeds MAX_GATEWAYS. Pools
        in it that cannot be decoded are left out and counted as refused."""
        try:
            heartbeat, left_out = decode(message)
        except PoolHeartbeatInvalid:
            self.refused_total += 1
            return False
        self.refused_total += left_out
        return self.record_heartbeat(heartbeat, now_s)

    def record_heartbeat(self, heartbeat: PoolHeartbeat, now_s: float) -> bool:
        self._forget_silent(now_s)
        if heartbeat.needs is not None and (heartbeat.gateway_id in self._needs or len(self._needs) < MAX_GATEWAYS):
            self._needs[heartbeat.gateway_id] = _Needs(now_s, heartbeat.needs)
        if heartbeat.demand is not None:
            self._record_demand(heartbeat, heartbeat.demand, now_s)
        if not heartbeat.pools:
            return True
        said = self._gateways.get(heartbeat.gateway_id)
        if said is None:
            if len(self._gateways) >= MAX_GATEWAYS:
                self.refused_total += 1
                return False
            said = self._gateways[heartbeat.gateway_id] = {}
        order = (heartbeat.incarnation, heartbeat.sequence)
        for stats in heartbeat.pools:
            known = said.get(stats.pool)
            if (known is None and len(said) < MAX_POOLS) or (known is not None and order > known.order):
                said[stats.pool] = _Said(order, now_s, stats)
        return True

    def sums(self, now_s: float) -> dict[str, PoolSum]:
        """Return by pool the sum of the statistics of all gateways that have reported it recently; forget silent
        gateways."""
        self._forget_silent(now_s)
        by_pool: dict[str, list[PoolStats]] = {}
        for said in self._gateways.values():
            for pool, each in said.items():
                by_pool.setdefault(pool, []).append(each.stats)
        demand = self._demand_by_pool()
        return {pool: _sum(told, demand.get(pool, (0, 0))) for pool, told in sorted(by_pool.items())}

    def _record_demand(self, heartbeat: PoolHeartbeat, demand: tuple[PoolDemand, ...], now_s: float) -> None:
        order, known = (heartbeat.incarnation, heartbeat.sequence), self._demand.get(heartbeat.gateway_id)
        if (known is None and len(self._demand) < MAX_GATEWAYS) or (known is not None and order > known.order):
            self._demand[heartbeat.gateway_id] = _Demand(now_s, order, demand)

    def _demand_by_pool(self) -> dict[str, tuple[int, int]]:
        """Return for each pool, over all gateways, the number of requests that wait for its first replica, and its
        number of open requests."""
        found: dict[str, tuple[int, int]] = {}
        for said in self._demand.values():
            for each in said.pools:
                waking, has = found.get(each.pool, (0, 0))
                found[each.pool] = waking + each.waking, has + each.open_requests
        return found

    def needs(self, now_s: float) -> GatewayNeeds:
        self._forget_silent(now_s)
        found: dict[tuple[str, str], Lacking] = {}
        for said in self._needs.values():
            for need in said.needs:
                known = found.get((need.what, need.subject))
                gateways = known.gateways + 1 if known is not None else 1
                found[need.what, need.subject] = Lacking(need.what, need.subject, gateways, need.why)
        return GatewayNeeds(len(self._needs), tuple(found[key] for key in sorted(found)[:MAX_LACKING]))

    def _forget_silent(self, now_s: float) -> None:
        for gateway_id in [gateway for gateway, said in self._needs.items() if now_s - said.heard_s > NEEDS_FOR_S]:
            del self._needs[gateway_id]
        for gateway_id in [gateway for gateway, said in self._demand.items() if now_s - said.heard_s > HEARD_FOR_S]:
            del self._demand[gateway_id]
        for gateway_id, said in list(self._gateways.items()):
            for pool in [pool for pool, each in said.items() if now_s - each.heard_s > HEARD_FOR_S]:
                del said[pool]
            if not said:
                del self._gateways[gateway_id]


def _sum(told: list[PoolStats], demand: tuple[int, int]) -> PoolSum:
    ttft, gaps = _merged(each.ttft_ms for each in told), _merged(each.gap_ms for each in told)
    return PoolSum(
        gateways=len(told),
        arrivals_per_s=sum(each.arrivals / each.window_s for each in told),
        arriving_tokens_per_s=sum(each.arriving_tokens / each.window_s for each in told),
        shed_per_s=sum(each.shed / each.window_s for each in told),
        degraded_per_s=sum(each.degraded / each.window_s for each in told),
        queue_s=max(each.queue_s for each in told),
        queued_tokens=sum(each.queued_tokens for each in told),
        ttft_p50_s=_seconds(ttft, 0.5),
        ttft_p95_s=_seconds(ttft, 0.95),
        ttft_p99_s=_seconds(ttft, 0.99),
        gap_p95_s=_seconds(gaps, 0.95),
        gap_p99_s=_seconds(gaps, 0.99),
        deferrable_tokens_per_s=sum(each.deferrable_tokens / each.window_s for each in told),
        overflow_per_s=sum(each.overflow / each.window_s for each in told),
        foreground_queued_tokens=sum(each.foreground_queued_tokens for each in told),
        rungs=tuple(rung for rung in RUNGS if any(rung in each.rungs for each in told)),
        why=next((each.why for each in told if each.rungs), ""),
        waking=demand[0],
        open_requests=demand[1],
    )


def _merged(all_buckets: Iterable[dict[int, int]]) -> QuantileSketch:
    merged = QuantileSketch()
    for buckets in all_buckets:
        merged.merge(QuantileSketch.from_buckets(buckets))
    return merged


def _seconds(sketch: QuantileSketch, q: float) -> float | None:
    value_ms = sketch.quantile(q)
    return value_ms / 1000 if value_ms is not None else None


# Report to the controller. Unknown fields are ignored: a newer registry may send more.


class ReplicaReport(msgspec.Struct, frozen=True):
    replica_id: Name
    pool: Name
    phase: ReplicaPhase
    running: Count
    waiting: Count
    kv_usage_ratio: Ratio
    decode_tokens_per_s: Annotated[float, msgspec.Meta(ge=0.0)]
    host: Host
    peer_port: Annotated[int, msgspec.Meta(ge=0, le=65535)]
    age_s: float
    service_ms: Millis = 0.0
    asleep: bool = False  # False from an agent or registry that does not send it
    prefix_events: bool | None = None  # as in the heartbeat
    cold_start: ColdStages = {}
    zone: str = ""
    node: str = ""
    began_unix_ms: Annotated[int, msgspec.Meta(ge=0)] = 0  # start of its agent
    pace: Pace | None = None
    accelerator_fault: str = ""
    suspected: str = ""  # the node or zone it is suspected with: `node n1`, `zone c`; empty if none


class PoolReport(msgspec.Struct, frozen=True):
    bus_connected: bool
    pools: dict[str, PoolSum]  # pools that gateways have reported recently
    replicas: tuple[ReplicaReport, ...]
    needs: GatewayNeeds = GatewayNeeds(0)


class DesiredPool(msgspec.Struct, frozen=True):
    """The autoscaler's desired size of one pool, for metrics and people."""

    pool: Name
    replicas: Count
    cause: Name


class DesiredPools(msgspec.Struct, frozen=True):
    pools: Annotated[tuple[DesiredPool, ...], msgspec.Meta(max_length=DESIRED_MAX_POOLS)]


def replica_report(heartbeat: Heartbeat, age_s: float, suspected: str = "") -> ReplicaReport:
    return ReplicaReport(
        replica_id=heartbeat.replica_id,
        pool=heartbeat.pool,
        phase=heartbeat.phase,
        running=heartbeat.running,
        waiting=heartbeat.waiting,
        kv_usage_ratio=heartbeat.kv_usage_ratio,
        decode_tokens_per_s=heartbeat.decode_tokens_per_s,
        host=heartbeat.host,
        peer_port=heartbeat.peer_port,
        age_s=round(age_s, 3),
        service_ms=heartbeat.service_ms,
        asleep=heartbeat.asleep,
        prefix_events=heartbeat.prefix_events,
        cold_start=heartbeat.cold_start,
        zone=heartbeat.zone,
        node=heartbeat.node,
        began_unix_ms=heartbeat.incarnation,
        pace=heartbeat.pace,
        accelerator_fault=heartbeat.accelerator_fault,
        suspected=suspected,
    )
