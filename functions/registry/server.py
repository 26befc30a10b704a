"""The registry process and its composition root: uvicorn serves, supervised tasks follow the bus and prepare the
database.

The registry starts without its database: it serves the snapshot, and routes that need the database answer 503 until
it is available. SIGTERM ends the long polls, waits for running requests, then exits with 0.
"""

import asyncio
import contextlib
import functools
import logging
import resource
import signal
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import orjson
import uvicorn
from starlette.types import ASGIApp

from functions.api.netloc import netloc
from functions.api.snapshot_document import SNAPSHOT_MAX_BYTES
from functions.artifacts.errors import ArtifactError
from functions.fleet.bus import BusUnavailable
from functions.fleet.heartbeat_seals import SealChecker, is_one_machine, networks_of
from functions.fleet.role_credentials import CredentialsUnusable, RoleCredentials
from functions.fleet.rollout_stats import MAX_BYTES as EVIDENCE_BYTES
from functions.fleet.snapshot_notices import announce, follow_notices
from functions.fleet.tasks import Supervised
from functions.fleet.valkey_bus import ValkeyBus
from functions.fleet.valkey_client import Password, password_in
from functions.http.binding import bind_socket
from functions.http.connections import Connections
from functions.http.guard import Bounds, Guard, Headers, Refusal
from functions.http.listening import GuardedServer, server_config
from functions.registry.app import make_app
from functions.registry.capacity_watch import CapacityWatch
from functions.registry.console.samples import MOST_BYTES as SAMPLES_BYTES
from functions.registry.console.samples import sample
from functions.registry.console.sources import ConsoleSources, sources_from
from functions.registry.console.tenants import MOST_BYTES as USE_BYTES
from functions.registry.errors import error_body
from functions.registry.fleet_watch import FleetWatch
from functions.registry.parts import RegistryParts, Secrets, SettingsWrong, database_from, parts_from
from functions.registry.regions.parts import RegionParts, region_parts
from functions.registry.settings import RegistrySettings
from functions.registry.sql.database import Database
from functions.registry.sql.errors import DatabaseUnavailable
from functions.registry.store import SnapshotStore, StoreFailed
from functions.registry.store_watch import StoreWatch
from functions.telemetry.memory import MIB, SNAPSHOT_FACTOR, Part, limit_bytes, warn_if_over

_log = logging.getLogger(__name__)
SNAPSHOT_FILE = "snapshot.json"
_BOUNDS = Bounds(
    head_bytes=32 * 1024,
    body_s=120.0,  # 64 MiB (a snapshot) at 4 Mbit/s
    upload_s=1800.0,  # an adapter; `UPLOAD_DEADLINE_S` of artifact_routes is the deadline
    uploads=frozenset((b"/v1/artifacts",)),
    lame_duck_s=0.5,
)
_BASE_BYTES = 108 * MIB  # measured (docs/measurements/README.md)
_CONNECTION_BYTES = 40_000  # measured with a long poll
_UPLOAD_BYTES = 24 * MIB  # a thread, its blocks, and parts being written to the store
_DESCRIPTORS_WANTED = 65_536
_SPARE_DESCRIPTORS = 64  # listener, bus, files, and clients outside long polls


class RegistryStartFailed(Exception):
    """The registry cannot start with this configuration; the message says what to change."""


def run(settings: RegistrySettings) -> None:
    """Serve until a signal ends the process. Raises RegistryStartFailed."""
    asyncio.run(_serve(settings))


def migrate(settings: RegistrySettings) -> None:
    """Upgrade the database schema. Raises RegistryStartFailed."""
    password = _secret(settings.database_password_file) if settings.database_password_file is not None else None
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        database_from(settings, password).prepare()
    except (SettingsWrong, DatabaseUnavailable) as error:
        raise RegistryStartFailed(str(error)) from error


async def _serve(settings: RegistrySettings) -> None:
    credentials = _credentials(settings.internal_token_file)
    listener = _listen(settings.host, settings.port)
    password = password_in(settings.bus_password_file)
    bus = ValkeyBus(settings.bus_url, password=password)
    tasks = Supervised()
    store = SnapshotStore(
        settings.state_dir / SNAPSHOT_FILE,
        min(settings.max_waiters, _descriptor_limit()),
        on_published=lambda notice: tasks.once("announce", announce(bus, notice)),
    )
    store.load()
    seals = SealChecker(
        credentials,
        required=settings.sealed_heartbeats,
        loopback=is_one_machine(settings.bus_url),
        pod_networks=networks_of(settings.pod_cidrs),
    )
    fleet = FleetWatch(bus, seals=seals)
    fleet.node_bus = bus
    parts = _parts(settings, credentials, store, fleet)
    regions = _regions(settings, password, parts)
    await _start_tasks(parts, bus, tasks, settings)
    if regions is not None:
        regions.start_tasks(tasks)
    tasks.forever("bus", fleet.run, expected=(BusUnavailable,))
    tasks.forever("pools", lambda: fleet.pools.follow(bus), expected=(BusUnavailable,))
    capacity = CapacityWatch(parts.services.database, fleet, store, time.time, settings.usage_days)
    tasks.forever("capacity", capacity.run, expected=(DatabaseUnavailable,))
    console = _console(settings)
    tasks.forever("samples", lambda: sample(console.samples, fleet))
    recent_use = functools.partial(console.recent_use.watch, parts.services.database)
    tasks.forever("recent use", recent_use, expected=(DatabaseUnavailable,))
    most = min(settings.max_connections, _descriptor_limit())
    warn_if_over(maximum_memory(settings), limit_bytes())
    guard = Guard(_BOUNDS, Connections(most, settings.max_connections_per_address), refusal_of)
    ingesting = parts.services.ingesting
    store_watch = StoreWatch(ingesting.ingest.store) if ingesting is not None else None
    if store_watch is not None:
        tasks.forever("store", store_watch.run)
    app = make_app(
        store,
        fleet,
        credentials,
        services=parts.services,
        collecting=parts.collecting,
        regions=regions,
        store_watch=store_watch,
        console=console,
    )
    server = _Server(_uvicorn_config(settings, app, guard), guard, store)
    try:
        await server.serve(sockets=[listener])
    finally:
        await tasks.close()
        if regions is not None:
            await regions.close()
        await console.close()
        await bus.close()
        await asyncio.to_thread(parts.close)


def _parts(
    settings: RegistrySettings, credentials: RoleCredentials, store: SnapshotStore, fleet: FleetWatch
) -> RegistryParts:
    def optional(file: Path | None) -> str | None:
        return _secret(file) if file is not None else None

    secrets = Secrets(credentials, optional(settings.pepper_file), optional(settings.database_password_file))
    try:
        return parts_from(settings, secrets, store, fleet)
    except SettingsWrong as error:
        raise RegistryStartFailed(str(error)) from error


def _regions(settings: RegistrySettings, bus_password: Password | None, parts: RegistryParts) -> RegionParts | None:
    token = _secret(settings.regions_token_file) if settings.regions_token_file is not None else None
    try:
        return region_parts(settings, token, bus_password, parts.services)
    except ValueError as error:
        raise RegistryStartFailed(str(error)) from error


def _console(settings: RegistrySettings) -> ConsoleSources:
    file = settings.trace_store_password_file
    try:
        return sources_from(settings, _secret(file) if file is not None else None)
    except OSError as error:
        raise RegistryStartFailed(f"a CA file cannot be read: {error}") from error


async def _start_tasks(parts: RegistryParts, bus: ValkeyBus, tasks: Supervised, settings: RegistrySettings) -> None:
    """Prepare the database, the snapshot and the staging folder, and start the background tasks. If the database is
    unavailable, a background task retries."""
    services = parts.services
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(DatabaseUnavailable):  # logged by the task below, which retries
        await asyncio.to_thread(services.database.prepare)
    tasks.forever("database", lambda: _prepare_database(services.database), expected=(DatabaseUnavailable,))
    sharing = parts.sharing
    if sharing is not None:
        with contextlib.suppress(DatabaseUnavailable, StoreFailed):
            await sharing.sync_once()  # so that the first answer has the snapshot of other registries
        tasks.forever("other registries", sharing.run, expected=(DatabaseUnavailable, StoreFailed))
        told = functools.partial(follow_notices, bus, sharing.notify_published)
        tasks.forever("notices of other registries", told, expected=(BusUnavailable,))

    async def gather_evidence() -> None:
        async for message in bus.stats():
            services.evidence.receive_message(message, time.time())

    tasks.forever("evidence", gather_evidence, expected=(BusUnavailable,))
    if services.ingesting is not None:
        left = await asyncio.to_thread(services.ingesting.ingest.clean_staging)
        if left:
            _log.info("%d unfinished uploads of an earlier process removed", left)
    collecting = parts.collecting
    if collecting is not None and settings.gc_interval_s > 0:
        interval_s = settings.gc_interval_s
        tasks.forever(
            "garbage",
            lambda: collecting.collect_periodically(interval_s),
            expected=(DatabaseUnavailable, ArtifactError),
        )


async def _prepare_database(database: Database) -> None:
    """Prepare the database if it is not ready, then wait until cancelled. Raises DatabaseUnavailable."""
    if not database.ready:
        await asyncio.to_thread(database.prepare)
        _log.info("the database is ready")
    await asyncio.Event().wait()


class _Server(GuardedServer):
    def __init__(self, config: uvicorn.Config, guard: Guard, store: SnapshotStore) -> None:
        super().__init__(config, guard)
        self._store = store

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._store.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals as uvicorn does, but do not raise them again: a clean end has exit code 0."""
        loop = asyncio.get_running_loop()
        handled = (signal.SIGTERM, signal.SIGINT)
        for number in handled:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)


def refusal_of(refusal: Refusal) -> tuple[Headers, bytes]:
    """Return headers and JSON body of a rejection by the HTTP parser, in the form of all other errors."""
    headers = [(b"content-type", b"application/json"), (b"x-request-id", f"req-{uuid.uuid4().hex}".encode())]
    return headers, orjson.dumps(error_body(refusal.status, refusal.code, refusal.message))


def _uvicorn_config(settings: RegistrySettings, app: ASGIApp, guard: Guard) -> uvicorn.Config:
    if (settings.tls_cert_file is None) != (settings.tls_key_file is None):
        raise RegistryStartFailed("set both SHOAL_REGISTRY_TLS_CERT_FILE and SHOAL_REGISTRY_TLS_KEY_FILE, or neither")
    return server_config(
        app,
        guard,
        timeout_graceful_shutdown=max(1, int(settings.drain_timeout_s)),
        ssl_certfile=settings.tls_cert_file,
        ssl_keyfile=settings.tls_key_file,
    )


def _descriptor_limit() -> int:
    """Return the number of clients that the file descriptors allow, after raising the soft limit to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else max(soft, _DESCRIPTORS_WANTED)
    with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid it; then the soft limit stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_DESCRIPTORS)


def _listen(host: str, port: int) -> socket.socket:
    """Return a listener bound to host and port. It is bound first, so that a port in use is reported immediately:
    raises RegistryStartFailed."""
    try:
        return bind_socket(host, port)
    except OSError as error:
        where = netloc(host, port)
        raise RegistryStartFailed(f"cannot listen on {where}: {error.strerror}; set SHOAL_REGISTRY_PORT") from error


def _secret(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RegistryStartFailed(f"the secret in {file} cannot be read: {error}") from error
    if not text:
        raise RegistryStartFailed(f"{file} is empty; it must contain a secret")
    return text


def _credentials(file: Path) -> RoleCredentials:
    _secret(file)
    try:
        found = RoleCredentials.read(file)
    except (OSError, UnicodeDecodeError, CredentialsUnusable) as error:
        raise RegistryStartFailed(f"the internal token in {file} cannot be used: {error}") from error
    if not found.is_token:
        raise RegistryStartFailed(
            f"{file} holds the credentials of the {found.role}; the registry needs the internal token"
        )
    return found


def maximum_memory(settings: RegistrySettings, snapshot_bytes: int = SNAPSHOT_MAX_BYTES) -> list[Part]:
    """Return by part the memory that a registry uses if it reaches all bounds of its settings together."""
    return [
        Part("the process", _BASE_BYTES),
        Part("connections", settings.max_connections * _CONNECTION_BYTES),
        Part("snapshots, old, new and arriving", snapshot_bytes * (2 * (SNAPSHOT_FACTOR + 1) + 2)),
        Part("uploads", settings.uploads_at_once * _UPLOAD_BYTES),
        Part("evidence of rollouts", EVIDENCE_BYTES),
        Part("samples of pools", SAMPLES_BYTES),
        Part("use of tenants", USE_BYTES),
    ]
