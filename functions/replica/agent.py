"""The composition root: every part of one agent is built and connected here."""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import httpx
from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from functions.api.ids import PoolName, ReplicaId
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.fetch import ObjectSource
from functions.artifacts.near_store import NearStore
from functions.artifacts.s3 import S3Settings, S3Store, load_credentials
from functions.artifacts.signatures import SignaturePolicy
from functions.artifacts.swarm.chunk_clients import Bandwidth
from functions.artifacts.swarm.shelf import ChunkShelf
from functions.decisions.adapters.plan import AdapterPolicy
from functions.decisions.catalogue import Catalogue
from functions.decisions.health import engine as engine_health
from functions.decisions.health.engine import HealthPolicy
from functions.decisions.health.reload_rate import DeclaredReload
from functions.engines.client import EngineClient
from functions.fleet import zones
from functions.fleet.bus import BusUnavailable
from functions.fleet.role_credentials import Bearer, CredentialsUnusable, RoleCredentials, read_for
from functions.fleet.snapshot_notices import follow_notices
from functions.fleet.snapshots import SnapshotFollower, SnapshotRefused, SnapshotSourceUnavailable
from functions.fleet.tasks import Supervised
from functions.fleet.valkey_bus import ValkeyBus
from functions.fleet.valkey_client import password_in
from functions.replica.accelerator_fault import AcceleratorFault
from functions.replica.accelerators import Accelerators, management_library
from functions.replica.app import Drain, make_app
from functions.replica.chunk_routes import ChunkUploads, chunk_routes
from functions.replica.cold_start import ColdStart
from functions.replica.disk_tier import DiskKeeper, DiskNeeds, DiskTier
from functions.replica.heartbeat_loop import HeartbeatLoop
from functions.replica.kv_events.source import EventSource
from functions.replica.kv_events.watch import KvWatch
from functions.replica.listeners import AgentStartFailed
from functions.replica.load_spans import LoadSpans
from functions.replica.metrics import AgentMetrics
from functions.replica.monitor import EngineProber, Monitor
from functions.replica.peer_app import accepted_credentials, make_peer_app, role_routes
from functions.replica.reconciler import AdapterReconciler, Reports
from functions.replica.settings import ReplicaSettings
from functions.replica.simulated_accelerator import SimulatedDevice
from functions.replica.source import StoreSource
from functions.replica.standby import Standby
from functions.replica.status import AgentStatus, Identity
from functions.replica.warm_up import WarmUp
from functions.replica.weights import LoadedWeights
from functions.telemetry.otlp_sender import OtlpSender, sender_of

_log = logging.getLogger(__name__)
_S3_READ_TIMEOUT_S = 10.0
_S3_ATTEMPTS = 2  # the reconciler retries with backoff; a thread must not be blocked for longer


@dataclass(slots=True)
class Agent:
    """All parts of an agent. `server` starts and stops them on one event loop."""

    app: FastAPI
    peer_app: ASGIApp
    status: AgentStatus
    drain: Drain
    tasks: Supervised
    heartbeat_loop: HeartbeatLoop
    monitor: Monitor
    standby: Standby
    reconciler: AdapterReconciler
    follower: SnapshotFollower
    disk: DiskKeeper
    cache: ArtifactCache
    notices_bus: ValkeyBus
    kv_watch: KvWatch | None
    accelerators: Accelerators
    accelerator_fault: AcceleratorFault
    zone_wanted: Callable[[], Coroutine[Any, Any, None]] | None  # None means a set or unknown zone
    otlp: OtlpSender | None  # None means that no collector is configured
    clients: tuple[httpx.AsyncClient, ...]

    def start(self) -> None:
        self.cache.clean_garbage()
        self.follower.load_cached()
        self.heartbeat_loop.start()
        self.tasks.forever("monitor", self.monitor.run)
        self.tasks.forever("adapters", self.reconciler.run)
        self.tasks.forever("standby", self.standby.run)
        self.tasks.forever("disk", self.disk.run)
        self.tasks.forever("snapshot", self.follower.run, expected=(SnapshotSourceUnavailable, SnapshotRefused))
        notices = partial(follow_notices, self.notices_bus, self.follower.handle_notice)
        self.tasks.forever("snapshot notices", notices, expected=(BusUnavailable,))
        if self.zone_wanted is not None:
            self.tasks.once("zone", self.zone_wanted())
        if self.kv_watch is not None:
            self.kv_watch.start(self.tasks)
        self.accelerators.start()
        if self.otlp is not None:
            self.otlp.start()
        self.tasks.forever("accelerator fault", self.accelerator_fault.run)

    async def stop(self) -> None:
        """Stop all parts. The last heartbeat is sent first, so that no request is routed to a stopping replica."""
        await asyncio.to_thread(self.heartbeat_loop.stop)
        self.accelerators.stop()
        await self.tasks.close()
        await self.notices_bus.close()
        if self.kv_watch is not None:
            await self.kv_watch.close()
        for client in self.clients:
            await client.aclose()
        if self.otlp is not None:
            await asyncio.to_thread(self.otlp.close)


def build(settings: ReplicaSettings) -> Agent:
    """Build every part of the agent. Raise OSError, CredentialsInvalid or ssl.SSLError for a wrong configuration."""
    status = _status(settings)
    tasks = Supervised()
    engine_http = _engine_http()
    registry_http = httpx.AsyncClient(verify=_tls(settings), trust_env=False)
    engine = EngineClient(
        engine_http, settings.engine_url, timeout_s=settings.check_timeout_s, load_timeout_s=settings.load_timeout_s
    )
    credentials = _credentials(settings)
    seal = partial(credentials.secret, "heartbeat")
    heartbeat_loop = HeartbeatLoop(status, partial(_bus, settings, seal))
    prober = EngineProber(engine, settings.pool, settings.probe_timeout_s, time.monotonic)
    warm_up = WarmUp(engine, settings.pool, status, settings.warm_up_timeout_s)
    weights = LoadedWeights(status, settings.weights_dir, settings.cache_dir / "weights", engine.models)
    metrics = AgentMetrics(status, heartbeat_loop.counts)
    metrics.watch_bus(heartbeat_loop.link)
    accelerators = Accelerators(settings.pool, settings.replica_id, _devices(settings), settings.accelerators_file)
    fault = AcceleratorFault(status, accelerators, settings.accelerator_fault_file, heartbeat_loop.send_now)
    fault.check_fault()
    metrics.watch_accelerators(accelerators)
    source = _source(settings, partial(credentials.secret, "chunks"))
    policy = AdapterPolicy(max_adapters=settings.max_adapters, grace_s=settings.adapter_grace_s)
    tier = DiskTier(source.cache, status.identity.replica_id, settings.cache_max_bytes)
    needs = DiskNeeds()
    disk = DiskKeeper(status, tier, needs)
    otlp = sender_of(settings, "shoal-agent", settings.replica_id)
    reports = Reports(
        loaded=metrics.on_load,
        failed=metrics.on_failure,
        disk_changed=disk.changed,
        ended=LoadSpans(otlp, settings.replica_id, settings.pool).ended if otlp is not None else None,
    )
    reconciler = AdapterReconciler(
        status, engine, source, policy, tasks, reports=reports, needs=needs, heard=lambda: heartbeat_loop.reachable
    )
    bearer = partial(credentials.bearer, "agent")
    follower = SnapshotFollower(
        client=registry_http,
        registry_url=settings.registry_url,
        token=bearer,
        cache_file=settings.snapshot_cache_file,
        on_swap=partial(_follow, settings, reconciler, source, prober, status=status),
        on_confirmed=status.confirm_epoch,
        pool=PoolName(settings.pool),
    )
    metrics.watch_snapshot(follower)
    status.snapshot_problem = lambda: follower.last_problem
    kv_watch = _kv_watch(settings, status)
    status.prefix_events = lambda: kv_watch.receives_events if kv_watch is not None else False
    if kv_watch is not None:
        metrics.watch_kv(kv_watch)
    drain = Drain(status, settings.drain_timeout_s)
    standby = Standby(
        status, engine, heartbeat_loop.send_now, may_sleep=settings.sleep_when_warm, engine_turn=reconciler.engine_turn
    )
    standby.read_standby_file(settings.standby_file)
    routers = [_chunks(source.cache, settings), role_routes(standby)]
    return Agent(
        app=make_app(status, drain, metrics.page, engine.metrics_page),
        peer_app=make_peer_app(
            partial(accepted_credentials, credentials, lambda: (status.identity.engine_host, status.peer_port)),
            reconciler.load,
            metrics.on_answer,
            routers,
        ),
        status=status,
        drain=drain,
        tasks=tasks,
        heartbeat_loop=heartbeat_loop,
        monitor=Monitor(
            status,
            engine,
            prober,
            _health_policy(settings),
            tasks,
            warm_up=warm_up,
            weights=weights,
            cold_start=ColdStart(settings.engine_log_file),
            pace_every_s=settings.pace_interval_s,
            on_new_engine=drain.engine_is_new,
        ),
        standby=standby,
        reconciler=reconciler,
        disk=disk,
        follower=follower,
        cache=source.cache,
        notices_bus=_bus(settings),
        kv_watch=kv_watch,
        accelerators=accelerators,
        accelerator_fault=fault,
        zone_wanted=_zone_wanted(settings, status, registry_http, bearer),
        otlp=otlp,
        clients=(engine_http, registry_http),
    )


def _follow(
    settings: ReplicaSettings,
    reconciler: AdapterReconciler,
    source: StoreSource,
    prober: EngineProber,
    catalogue: Catalogue,
    *,
    status: AgentStatus,
) -> None:
    """Apply a new snapshot: the pool's task, role, adapter limits and KV reload facts, and the adapters to load.
    Settings fill in for missing limits."""
    entry = catalogue.pools.get(PoolName(settings.pool))
    if entry is not None:
        prober.task = entry.task
        status.hands_over = entry.role == "prefill"
        status.accelerators = entry.accelerators_per_replica
        status.declared_reload = DeclaredReload(
            entry.kv_bytes_per_token, entry.kv_reload_bytes_per_s, entry.accelerators_per_replica
        )
    adapters = entry.max_adapters if entry is not None else None
    rank = entry.max_lora_rank if entry is not None else None
    if reconciler.set_max_adapters(settings.max_adapters if adapters is None else adapters):
        _warn_about_difference(settings, "max_adapters", settings.max_adapters, adapters)
    if source.set_max_rank(settings.max_lora_rank if rank is None else rank):
        _warn_about_difference(settings, "max_lora_rank", settings.max_lora_rank, rank)
    reconciler.follow(catalogue)


def _warn_about_difference(settings: ReplicaSettings, name: str, configured: int, of_engine: int | None) -> None:
    """Warn if the operator has set the setting `name` but the engine's arguments set another value, which is used."""
    if name in settings.model_fields_set and of_engine not in (None, configured):
        _log.warning("%s is set to %d, but the engine's arguments set %d, which is used", name, configured, of_engine)


def _devices(settings: ReplicaSettings) -> Any | None:
    simulated = settings.simulated_accelerator_file
    return SimulatedDevice(simulated) if simulated is not None else management_library()


def _status(settings: ReplicaSettings) -> AgentStatus:
    now_s = time.monotonic()
    identity = Identity(
        replica_id=ReplicaId(settings.replica_id),
        pool=PoolName(settings.pool),
        engine_host=settings.engine_host,
        engine_port=settings.engine_port,
        incarnation_unix_ms=time.time_ns() // 1_000_000,
        zone=settings.zone,
        node=settings.node_name,
    )
    return AgentStatus(
        identity=identity, health=engine_health.initial_health(now_s), clock=time.monotonic, judged_s=now_s
    )


def _zone_wanted(
    settings: ReplicaSettings, status: AgentStatus, registry: httpx.AsyncClient, token: Bearer
) -> Callable[[], Coroutine[Any, Any, None]] | None:
    if settings.zone or not settings.node_name:
        return None

    def set_zone(zone: str) -> None:
        status.identity = replace(status.identity, zone=zone)  # the next heartbeat carries it

    return partial(zones.fetch_zone, registry, settings.registry_url, token, ("node", settings.node_name), set_zone)


def _kv_watch(settings: ReplicaSettings, status: AgentStatus) -> KvWatch | None:
    if not settings.kv_events_endpoint:
        return None
    return KvWatch(
        replica_id=status.identity.replica_id,
        pool=status.identity.pool,
        source=EventSource(settings.kv_events_endpoint, settings.kv_events_replay_endpoint),
        bus=_bus(settings),
        clock=time.monotonic,
        wall_clock=time.time,
        kv_blocks_total=lambda: status.load.kv_blocks_total,
        kv_block_tokens=lambda: status.load.kv_block_tokens if status.load.kv_blocks_total else 0,
        engine_is_gone=lambda: status.health.phase in ("starting", "dead"),
        engine_computes=lambda: status.load.running > 0,
    )


def _health_policy(settings: ReplicaSettings) -> HealthPolicy:
    return HealthPolicy(
        silent_after_s=settings.silent_after_s,
        stalled_after_s=settings.stalled_after_s,
        idle_probe_interval_s=settings.idle_probe_interval_s,
        start_timeout_s=settings.start_timeout_s,
        condemn_hung_after_s=settings.condemn_hung_after_s,
    )


def _source(settings: ReplicaSettings, of_nodes: Callable[[], str]) -> StoreSource:
    store: ObjectSource = S3Store(
        S3Settings(
            endpoint_url=settings.s3_endpoint_url,
            credentials=load_credentials(settings.s3_credentials_file),
            bucket=settings.s3_bucket,
            read_timeout_s=_S3_READ_TIMEOUT_S,
            max_attempts=_S3_ATTEMPTS,
        )
    )
    if settings.adapter_cache_url:
        store = NearStore(store, settings.adapter_cache_url, of_nodes)
    return StoreSource(
        store=store,
        cache=ArtifactCache(settings.cache_dir),
        max_rank=settings.max_lora_rank,
        timeout_s=settings.fetch_timeout_s,
        signatures=_signatures(settings),
    )


def _chunks(cache: ArtifactCache, settings: ReplicaSettings) -> APIRouter:
    return chunk_routes(ChunkShelf(cache), ChunkUploads(Bandwidth(settings.peer_up_bytes_per_s)))


def _signatures(settings: ReplicaSettings) -> SignaturePolicy | None:
    if not settings.signature_key_files and not settings.signatures_required:
        return None
    return SignaturePolicy(keys=settings.signature_key_files, required=settings.signatures_required)


def _engine_http() -> httpx.AsyncClient:
    """Return a client with a new connection per call: each check proves that the engine accepts, and none is stale."""
    return httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_connections=64, max_keepalive_connections=0))


def _credentials(settings: ReplicaSettings) -> RoleCredentials:
    try:
        return read_for("agent", settings.internal_token_file)
    except CredentialsUnusable as error:
        raise AgentStartFailed(f"SHOAL_REPLICA_INTERNAL_TOKEN_FILE: {error}") from error


def _tls(settings: ReplicaSettings) -> ssl.SSLContext | bool:
    if settings.registry_ca_file is None:
        return True
    return ssl.create_default_context(cafile=str(settings.registry_ca_file))


def _bus(settings: ReplicaSettings, seal: Bearer | None = None) -> ValkeyBus:
    return ValkeyBus(settings.bus_url, password=password_in(settings.bus_password_file), seal=seal)
