"""Gauges of the gateway's state at the moment of a scrape: open, held, remembered and used objects.

`metrics` counts events as they happen. This module reads state at the scrape, and adds the growth of totals that
other modules hold to its counters.
"""

from prometheus_client import Gauge

from functions.gateway.replica_gauges import ReplicaGauges
from functions.gateway.services import Services
from functions.telemetry.cells import CounterFamily

_PHASES = ("starting", "ready", "warm", "draining", "hung", "dead")


class StateGauges:
    def __init__(self, services: Services) -> None:
        self._services = services
        registry = services.metrics.registry
        self._bus_up = Gauge("shoal_bus_up", "1 while the bus delivers heartbeats of replicas", registry=registry)
        self._bus_state_s = Gauge(
            "shoal_bus_state_seconds", "Time since the bus was found or lost, or since the start", registry=registry
        )
        self._unheard = Gauge("shoal_unheard_replicas", "Replicas in use without current heartbeats", registry=registry)
        self._hedges = CounterFamily(
            "shoal_hedges", "Second attempts started because the first one was slow", ["outcome"], registry=registry
        )
        self._hedges_before = (0, 0)
        self._quarantined = CounterFamily(
            "shoal_prompts_quarantined",
            "Requests rejected because replicas failed on their prompt",
            registry=registry,
        )
        self._quarantined_before = 0
        self._traces_dropped = CounterFamily(
            "shoal_traces_dropped", "Trace rows that could not be written in time", registry=registry
        )
        self._traces_dropped_before = 0
        self._cold_waiting = Gauge(
            "shoal_cold_load_waiting", "Requests that wait for an adapter to load", registry=registry
        )
        self._wake_waiting = Gauge(
            "shoal_wake_waiting", "Requests that wait for the first replica of a pool at zero", registry=registry
        )
        self._pins = Gauge("shoal_session_pins", "Sessions pinned to a version in rollout", registry=registry)
        self._unpublished_pins = Gauge(
            "shoal_session_pins_untold", "Pins that other gateways have not received yet", registry=registry
        )
        self._lost_pins = CounterFamily(
            "shoal_session_pins_lost", "Pins that other gateways will not receive", registry=registry
        )
        self._lost_pins_before = 0
        self._homes = Gauge("shoal_session_homes", "Conversations whose replica is known", registry=registry)
        self._untold_homes = Gauge(
            "shoal_session_homes_untold", "Homes that other gateways have not received yet", registry=registry
        )
        self._home_totals = CounterFamily(
            "shoal_session_homes_exchanged",
            "Session homes that other gateways cannot derive, by outcome of their exchange",
            ["outcome"],
            registry=registry,
        )
        self._home_totals_before = (0, 0, 0)
        self._open = Gauge("shoal_open_requests", "Requests under way", registry=registry)
        self._connections = Gauge("shoal_client_connections", "Client connections open", registry=registry)
        self._uploads = Gauge(
            "shoal_upload_bytes",
            "Bytes held for bodies and answers over 64 KiB until they are written",
            registry=registry,
        )
        self._unread = Gauge("shoal_unread_bytes", "Bytes of answers that clients have not read yet", registry=registry)
        self._epoch = Gauge("shoal_snapshot_epoch", "Epoch of the snapshot in use", registry=registry)
        self._age = Gauge(
            "shoal_snapshot_age_seconds", "Time since the registry last vouched for the snapshot", registry=registry
        )
        self._refused_snapshots = CounterFamily(
            "shoal_snapshot_refused", "Snapshots rejected as invalid", registry=registry
        )
        self._refused_before = 0
        self._phase = Gauge(
            "shoal_replica_state", "1 for the phase that the replica is in", ["replica", "state"], registry=registry
        )
        self._replicas = ReplicaGauges()
        registry.register(self._replicas)
        self._kv = Gauge("shoal_kv_usage_ratio", "KV cache in use, 0 to 1", ["replica"], registry=registry)

    def scrape(self) -> None:
        """Update all gauges and the ranking of models with own series; called on the loop before each rendering."""
        services = self._services
        services.metrics.prefixes.scrape()
        services.metrics.rank_models(services.clock())
        self._bus_up.set(services.bus_link.is_up)
        self._bus_state_s.set(services.bus_link.state_s)
        expiry = services.fleet.expiry
        self._unheard.set(len(expiry.doubted) + len(expiry.serving))
        self._open.set(len(services.open_requests))
        self._connections.set(len(services.connections))
        self._uploads.set(services.held.held_bytes)
        self._unread.set(services.held.unread_bytes)
        self._cold_waiting.set(services.adapter_loads.waiting if services.adapter_loads is not None else 0)
        self._wake_waiting.set(services.pool_wakes.waiting)
        self._scrape_totals()
        self._scrape_snapshot()
        self._phase.clear()
        self._kv.clear()
        suspected = services.fleet.suspicions.replicas.values()
        catalogue = services.state.catalogue
        self._replicas.update(
            (heartbeat for heartbeat, _ in services.fleet.heartbeats()),
            services.clock(),
            suspected,
            declared=catalogue.pools if catalogue is not None else None,
        )
        for heartbeat, _ in services.fleet.heartbeats():
            self._kv.labels(heartbeat.replica_id).set(heartbeat.kv_usage_ratio)
            for phase in _PHASES:
                self._phase.labels(heartbeat.replica_id, phase).set(int(heartbeat.phase == phase))

    def _scrape_totals(self) -> None:
        services, pins = self._services, self._services.rollouts.splits.pins
        begun, won = services.hedging.begun_total, services.hedging.won_total
        self._hedges.labels("begun").inc(begun - self._hedges_before[0])
        self._hedges.labels("won").inc(won - self._hedges_before[1])
        self._hedges_before = (begun, won)
        self._quarantined.inc(services.quarantine.refused_total - self._quarantined_before)
        self._quarantined_before = services.quarantine.refused_total
        self._traces_dropped.inc(services.traces.dropped_total - self._traces_dropped_before)
        self._traces_dropped_before = services.traces.dropped_total
        self._pins.set(len(pins))
        self._unpublished_pins.set(pins.unpublished)
        self._lost_pins.inc(pins.lost_total - self._lost_pins_before)
        self._lost_pins_before = pins.lost_total
        homes = services.router.homes
        self._homes.set(len(homes))
        self._untold_homes.set(homes.unpublished)
        totals = (homes.told_total, homes.heard_total, homes.lost_total)
        for outcome, total, before in zip(("told", "heard", "lost"), totals, self._home_totals_before, strict=True):
            self._home_totals.labels(outcome).inc(total - before)
        self._home_totals_before = totals

    def _scrape_snapshot(self) -> None:
        state = self._services.state
        if state.catalogue is not None:
            self._epoch.set(state.catalogue.epoch)
            self._age.set(self._services.snapshot_age_s())
        refused = state.snapshot_source.refused_total if state.snapshot_source is not None else 0
        self._refused_snapshots.inc(refused - self._refused_before)
        self._refused_before = refused
