"""The registry's metrics, in a separate collector registry. Their names are part of the public contract."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, get_args

from fastapi import Request
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from functions.decisions.health.failure_domains import NodeTrouble
from functions.decisions.rollout.report import stages_of
from functions.fleet.verdicts import Verdicts
from functions.registry.errors import ApiError
from functions.registry.fleet_watch import FleetWatch
from functions.registry.services import RegistryServices
from functions.registry.sql import rollouts
from functions.registry.sql.errors import DatabaseUnavailable
from functions.registry.store import SnapshotStore


class RegionStatus(NamedTuple):
    """State of another region as this registry sees it."""

    name: str
    is_connected: bool
    held: int
    taken: int


class RegistryMetrics:
    def __init__(self) -> None:
        self.collectors = CollectorRegistry()
        self.requests = Counter(
            "shoal_registry_requests",
            "Requests answered; code 0: the client disconnected first",
            ["route", "method", "code"],
            registry=self.collectors,
        )
        self.publications = Counter(
            "shoal_snapshot_publications",
            "Snapshots received for publication, by outcome",
            ["outcome"],
            registry=self.collectors,
        )
        self._answers = Counter(
            "shoal_snapshot_answers",
            "Snapshots sent, as a whole document or a delta",
            ["document"],
            registry=self.collectors,
        )
        self._answer_bytes = Counter(
            "shoal_snapshot_answer_bytes", "Bytes of snapshots sent", ["document"], registry=self.collectors
        )
        self._epoch = self._gauge("shoal_snapshot_epoch", "Epoch of the published snapshot; 0: none")
        self._age_s = self._gauge("shoal_snapshot_age_seconds", "Time since the published snapshot was compiled")
        self._waiters = self._gauge("shoal_snapshot_waiters", "Long polls that wait for a snapshot")
        self._bus_connected = self._gauge("shoal_bus_connected", "1 while the bus is connected and heartbeats arrive")
        self._bus_up = self._gauge("shoal_bus_up", "1 while the bus is connected")
        self._bus_state_s = self._gauge(
            "shoal_bus_state_seconds", "Time since the bus was found or lost, or since the start"
        )
        self._refused = self._gauge("shoal_heartbeats_refused", "Messages on the bus that were not valid heartbeats")
        self._replica_state = Gauge(
            "shoal_replica_state",
            "1 for the phase that the replica is in",
            ["replica", "state"],
            registry=self.collectors,
        )
        self._desired = Gauge(
            "shoal_autoscaler_desired_replicas",
            "Desired replicas of a pool, by reason",
            ["pool", "reason"],
            registry=self.collectors,
        )
        self._cold_start = Gauge(
            "shoal_cold_start_seconds",
            "Duration of a pool's last replica start, by stage",
            ["pool", "stage"],
            registry=self.collectors,
        )
        self._without_facts = Gauge(
            "shoal_base_facts_missing",
            "1 for a base without facts: adapters over it are stored unchecked, or rejected if facts are required",
            ["base"],
            registry=self.collectors,
        )
        self._rollouts = Gauge(
            "shoal_rollout_stage",
            "Stage of an active rollout; 0: loading",
            ["model"],
            registry=self.collectors,
        )

        self._troubles = Gauge(
            "shoal_replica_troubled",
            "1 for a replica that is slow (restarting, held) or whose accelerator has failed (out)",
            ["pool", "replica", "what", "state"],
            registry=self.collectors,
        )
        self._slow_restarts = Gauge(
            "shoal_slow_replica_restarts",
            "Replicas restarted because they were slow, since the controller started",
            ["pool"],
            registry=self.collectors,
        )
        self._nodes_not_ready = Gauge(
            "shoal_nodes_not_ready",
            "Nodes that are not ready, by state: down (kubelet reports it) or unknown (node is silent)",
            ["state"],
            registry=self.collectors,
        )

        self._store_up = self._gauge("shoal_store_up", "1 while the object store answers")
        self._store_up.set(1)  # until the first check
        self._region_connected = Gauge(
            "shoal_region_connected",
            "1 while the region's registry answers; otherwise limits ignore that region",
            ["region"],
            registry=self.collectors,
        )
        self._region_held = Gauge(
            "shoal_region_held",
            "Models and keys of the region with facts that cannot be adopted",
            ["region"],
            registry=self.collectors,
        )
        self._region_taken = Gauge(
            "shoal_region_taken",
            "Facts of the region adopted since the start",
            ["region"],
            registry=self.collectors,
        )

    def set_store_up(self, is_up: bool | None) -> None:
        if is_up is not None:
            self._store_up.set(is_up)

    def count_answer(self, document: str, size_bytes: int) -> None:
        """Count a snapshot document sent to a follower, and its bytes; `document` is `whole` or `delta`."""
        self._answers.labels(document=document).inc()
        self._answer_bytes.labels(document=document).inc(size_bytes)

    def exposition(
        self,
        store: SnapshotStore,
        fleet: FleetWatch,
        now_unix_s: float,
        stages: Mapping[str, int] | None = None,
        others: Iterable[RegionStatus] = (),
        *,
        without_facts: Iterable[str] = (),
    ) -> bytes:
        """Return the text that Prometheus scrapes, with current gauges. `stages` are rollout stages by model, whose
        number the caller limits; `others` are other regions; `without_facts` are bases without facts."""
        self._epoch.set(store.epoch)
        compiled_unix_s = store.current.snapshot.compiled_unix_s if store.current is not None else now_unix_s
        self._age_s.set(max(0.0, now_unix_s - compiled_unix_s))
        self._waiters.set(store.waiters)
        self._bus_connected.set(fleet.bus_connected)
        self._bus_up.set(fleet.link.is_up)
        self._bus_state_s.set(fleet.link.state_s)
        self._refused.set(fleet.refused_total)
        self._replica_state.clear()
        for seen in fleet.replicas():
            self._replica_state.labels(replica=seen.heartbeat.replica_id, state=seen.heartbeat.phase).set(1)
        self._desired.clear()
        for wanted in fleet.pools.desired():
            self._desired.labels(pool=wanted.pool, reason=wanted.cause).set(wanted.replicas)
        self._cold_start.clear()
        for pool, stages_s in fleet.cold_starts.items():
            for part, took_s in stages_s.items():
                self._cold_start.labels(pool=pool, stage=part).set(took_s)
        self._set_verdicts(fleet.verdicts)
        self._without_facts.clear()
        for base in without_facts:
            self._without_facts.labels(base=base).set(1)
        self._rollouts.clear()
        for model, stage in (stages or {}).items():
            self._rollouts.labels(model=model).set(stage)
        for gauge in (self._region_connected, self._region_held, self._region_taken):
            gauge.clear()
        for other in others:
            self._region_connected.labels(region=other.name).set(other.is_connected)
            self._region_held.labels(region=other.name).set(other.held)
            self._region_taken.labels(region=other.name).set(other.taken)
        return generate_latest(self.collectors)

    def _set_verdicts(self, verdicts: Verdicts) -> None:
        self._troubles.clear()
        for each in verdicts.replicas:
            self._troubles.labels(pool=each.pool, replica=each.replica_id, what=each.what, state=each.state).set(1)
        self._slow_restarts.clear()
        for pool, restarts in verdicts.slow_restarts.items():
            self._slow_restarts.labels(pool=pool).set(restarts)
        for state in get_args(NodeTrouble):
            self._nodes_not_ready.labels(state=state).set(sum(each == state for each in verdicts.nodes.values()))

    def _gauge(self, name: str, documentation: str) -> Gauge:
        return Gauge(name, documentation, registry=self.collectors)


# Stages of active rollouts for `/metrics`: a limited number, none while the database is unavailable. `/metrics` needs
# no credential, but a model's name is its tenant's data, so these series need the internal token.


ROLLOUTS_MAX = 1000  # the newest ones
WAIT_S = 3.0  # a scrape times out after 10 s

_ACTIVE = rollouts.Filter(active=True)


async def active_stages(
    services: RegistryServices, request: Request, check: Callable[[Request], None]
) -> Mapping[str, int]:
    """Return the stage by model of its active rollout that is furthest, counted from 1 (0 while loading), for at most
    ROLLOUTS_MAX. Empty if `check` rejects the request, or if the database does not answer soon."""
    try:
        check(request)
        async with asyncio.timeout(WAIT_S):
            found = await services.database.run(
                lambda: services.database.read(lambda c: rollouts.page(c, _ACTIVE, None, ROLLOUTS_MAX))
            )
    except (ApiError, DatabaseUnavailable, TimeoutError):
        return {}
    return stages_of(stored.rollout for stored in found)
