"""The agent's Prometheus page: gauges read from the status at each scrape, and counters of loads."""

from collections.abc import Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from functions.decisions.routing.choice import ReplicaPhase
from functions.fleet.snapshots import SnapshotFollower
from functions.replica.accelerators import Accelerators
from functions.replica.cold_calls import ANSWERS, TIERS, Answer, Tier
from functions.replica.heartbeat_loop import HeartbeatCounts
from functions.replica.kv_events.watch import KvWatch
from functions.replica.status import AgentStatus
from functions.telemetry.bus_link import BusLink

_LOAD_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class AgentMetrics:
    def __init__(self, status: AgentStatus, heartbeats: HeartbeatCounts) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_StatusCollector(status, heartbeats))
        self._loads = Counter(
            "shoal_adapter_loads",
            "Adapters made ready, by their former tier; slot and host were loaded when requested.",
            ["tier"],
            registry=self._registry,
        )
        self._failures = Counter(
            "shoal_adapter_load_failures",
            "Adapter loads that were refused or failed.",
            ["outcome"],
            registry=self._registry,
        )
        self._cold = Counter(
            "shoal_adapter_cold_loads",
            "Cold loads that gateways requested, by answer.",
            ["answer"],
            registry=self._registry,
        )
        self._load_seconds = Histogram(
            "shoal_adapter_load_seconds",
            "Time from the decision to load an adapter until the engine has it.",
            buckets=_LOAD_SECONDS,
            registry=self._registry,
        )
        for tier in TIERS:
            self._loads.labels(tier)
        for outcome in ("refused", "failed"):
            self._failures.labels(outcome)
        for answer in ANSWERS:
            self._cold.labels(answer)

    def on_load(self, tier: Tier, seconds: float) -> None:
        self._loads.labels(tier).inc()
        if tier in ("disk", "s3"):
            self._load_seconds.observe(seconds)

    def on_failure(self, outcome: str) -> None:
        self._failures.labels(outcome).inc()

    def on_answer(self, answer: Answer) -> None:
        self._cold.labels(answer).inc()

    def watch_snapshot(self, follower: SnapshotFollower) -> None:
        """Show from now on the seconds since the registry last confirmed the snapshot, and the number of snapshots that
        were rejected."""
        self._registry.register(_SnapshotCollector(follower))

    def watch_bus(self, link: BusLink) -> None:
        """Show from now on the state of the heartbeats' connection to the bus."""
        self._registry.register(_BusCollector(link))

    def watch_kv(self, watch: KvWatch) -> None:
        """Export from now on the figures of the prefix index: known KV blocks, event batches, losses and blocks left
        out."""
        self._registry.register(_KvCollector(watch))

    def watch_accelerators(self, accelerators: Accelerators) -> None:
        self._registry.register(accelerators)

    def page(self) -> bytes:
        return generate_latest(self._registry)


class _StatusCollector(Collector):
    def __init__(self, status: AgentStatus, heartbeats: HeartbeatCounts) -> None:
        self._status, self._heartbeats = status, heartbeats

    def collect(self) -> Iterator[Metric]:
        status = self._status
        replica = status.identity.replica_id
        phase, _ = status.phase()
        states = GaugeMetricFamily(
            "shoal_replica_state", "1 for the replica's current phase, 0 for all others.", labels=["replica", "state"]
        )
        for name in get_args(ReplicaPhase):
            states.add_metric([replica, name], float(name == phase))
        yield states
        gauges = {
            "shoal_kv_usage_ratio": ("Share of KV blocks in use, 0 to 1.", status.load.kv_usage_ratio),
            "shoal_replica_running": ("Requests in the engine's batch.", status.load.running),
            "shoal_replica_waiting": ("Requests waiting in the engine.", status.load.waiting),
            "shoal_replica_adapters": ("Adapters loaded and advertised.", len(status.adapters.advertised)),
            "shoal_replica_adapter_room": ("Adapters that could be loaded now: free slots.", status.adapters.room),
            "shoal_replica_cold_adapters": ("Adapters that wait for a first request.", status.adapters.cold),
            "shoal_replica_disk_artifacts": ("Artifacts on the node's disk.", status.disk.artifacts),
            "shoal_replica_disk_bytes": ("Bytes of the artifacts on the node's disk.", status.disk.size_bytes),
            "shoal_replica_service_ms": (
                "Milliseconds that each outstanding request adds to the next one's time.",
                status.rates.service_ms,
            ),
            "shoal_replica_prefill_ms_per_token": (
                "Milliseconds of prefill per token.",
                status.rates.prefill_ms_per_token,
            ),
            "shoal_kv_reload_ms_per_token": (
                "Milliseconds per token to reload KV blocks from host memory; 0: none are stored there.",
                status.reload.ms_per_token(status.declared_reload),
            ),
        }
        for name, (text, value) in gauges.items():
            family = GaugeMetricFamily(name, text, labels=["replica"])
            family.add_metric([replica], value)
            yield family
        speed = GaugeMetricFamily(
            "shoal_tokens_per_second_per_accelerator",
            "Tokens per second that this replica's engine generates, over half a minute, divided by its accelerators. "
            "For a pool, use the mean.",
            labels=["pool"],
        )
        speed.add_metric([status.identity.pool], status.token_rate.per_s / max(1, status.accelerators))
        yield speed
        draft = CounterMetricFamily(
            "shoal_draft_tokens",
            "Draft tokens of speculative decoding: all proposed ones, and the accepted ones.",
            labels=["pool", "replica", "outcome"],
        )
        draft.add_metric([status.identity.pool, replica, "proposed"], status.load.draft_tokens_total)
        draft.add_metric([status.identity.pool, replica, "accepted"], status.load.accepted_draft_tokens_total)
        yield draft
        reloaded = "Prompt tokens that the engine found in host memory."
        yield CounterMetricFamily("shoal_kv_host_hit_tokens", reloaded, status.load.host_hit_tokens_total)
        yield GaugeMetricFamily("shoal_snapshot_epoch", "Epoch of the snapshot in use.", status.snapshot_epoch)
        heartbeats = CounterMetricFamily("shoal_heartbeats", "Heartbeats, by outcome.", labels=["outcome"])
        heartbeats.add_metric(["sent"], self._heartbeats.sent)
        heartbeats.add_metric(["failed"], self._heartbeats.failed)
        yield heartbeats


class _SnapshotCollector(Collector):
    def __init__(self, follower: SnapshotFollower) -> None:
        self._follower = follower

    def collect(self) -> Iterator[Metric]:
        refused = self._follower.refused_total
        yield CounterMetricFamily("shoal_snapshot_refused", "Snapshots that were refused as invalid.", refused)
        age_s = self._follower.age_s()  # None before the first contact with the registry
        if age_s is not None:
            yield GaugeMetricFamily(
                "shoal_snapshot_age_seconds", "Seconds since the registry last confirmed the snapshot.", age_s
            )


class _BusCollector(Collector):
    def __init__(self, link: BusLink) -> None:
        self._link = link

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("shoal_bus_up", "1 while heartbeats reach the bus.", float(self._link.is_up))
        yield GaugeMetricFamily(
            "shoal_bus_state_seconds",
            "Seconds since the bus was last found or lost, or since the start.",
            self._link.state_s,
        )


class _KvCollector(Collector):
    def __init__(self, watch: KvWatch) -> None:
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        watch = self._watch
        yield GaugeMetricFamily(
            "shoal_kv_blocks_known", "KV blocks on the accelerator that the prefix index knows.", len(watch.blocks)
        )
        in_host = "KV blocks in host memory alone that the prefix index knows."
        yield GaugeMetricFamily("shoal_kv_host_blocks_known", in_host, len(watch.blocks.host_names))
        yield CounterMetricFamily("shoal_kv_event_batches", "Batches of KV events applied.", watch.batches_total)
        yield CounterMetricFamily(
            "shoal_kv_events_lost", "Times that the prefix index was dropped and started anew.", watch.lost_total
        )
        yield CounterMetricFamily(
            "shoal_kv_blocks_left_out",
            "KV blocks that were left out of the prefix index: unnamed or over its limit.",
            watch.blocks.left_out_total,
        )
