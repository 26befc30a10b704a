"""The registry process: the composition root. uvicorn serves, one supervised task follows the bus.

SIGTERM ends the long polls first, then waits for what still runs, then exits with 0.
"""

import asyncio
import contextlib
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from functions.fleet.bus import BusUnavailable
from functions.fleet.snapshot_news import announce
from functions.fleet.tasks import Supervised
from functions.fleet.valkey_bus import ValkeyBus
from functions.registry.app import make_app
from functions.registry.fleet_watch import FleetWatch
from functions.registry.settings import RegistrySettings
from functions.registry.store import SnapshotStore

SNAPSHOT_FILE = "snapshot.json"
_KEEP_ALIVE_S = 75
_DESCRIPTORS_WANTED = 65_536
_SPARE_DESCRIPTORS = 64  # listener, bus, files, and clients that do not wait


class StartFailed(Exception):
    """The registry cannot start as configured; the message says what to change."""


def run(settings: RegistrySettings) -> None:
    """Serve until told to end; raises StartFailed."""
    asyncio.run(_serve(settings))


async def _serve(settings: RegistrySettings) -> None:
    token = _secret(settings.internal_token_file)
    listener = _listen(settings.host, settings.port)
    password = _secret(settings.bus_password_file) if settings.bus_password_file is not None else None
    bus = ValkeyBus(settings.bus_url, password=password)
    tasks = Supervised()
    store = SnapshotStore(
        settings.state_dir / SNAPSHOT_FILE,
        min(settings.max_waiters, _bearable_connections()),
        on_published=lambda news: tasks.once("announce", announce(bus, news)),
    )
    store.load()
    fleet = FleetWatch(bus)
    tasks.forever("bus", fleet.run, expected=(BusUnavailable,))
    server = _Server(_uvicorn_config(settings, store, fleet, token), store)
    try:
        await server.serve(sockets=[listener])
    finally:
        await tasks.close()
        await bus.close()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, store: SnapshotStore) -> None:
        super().__init__(config)
        self._store = store

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._store.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but a signal that was obeyed is not raised again: a clean end is exit code 0."""
        loop = asyncio.get_running_loop()
        handled = (signal.SIGTERM, signal.SIGINT)
        for number in handled:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)


def _uvicorn_config(settings: RegistrySettings, store: SnapshotStore, fleet: FleetWatch, token: str) -> uvicorn.Config:
    if (settings.tls_cert_file is None) != (settings.tls_key_file is None):
        raise StartFailed("set both SHOAL_REGISTRY_TLS_CERT_FILE and SHOAL_REGISTRY_TLS_KEY_FILE, or neither")
    return uvicorn.Config(
        app=make_app(store, fleet, token),
        http="httptools",  # refuses smuggling that h11 lets through
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, int(settings.drain_timeout_s)),
        ssl_certfile=settings.tls_cert_file,
        ssl_keyfile=settings.tls_key_file,
    )


def _bearable_connections() -> int:
    """How many clients the file descriptors suffice for, once the soft limit is raised to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else max(soft, _DESCRIPTORS_WANTED)
    with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid it; then the soft limit is what there is
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_DESCRIPTORS)


def _listen(host: str, port: int) -> socket.socket:
    """The listener, made before anything else, so that a port that is taken is said at once and in words."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise StartFailed(f"cannot listen on {host}:{port}: {error.strerror}; set SHOAL_REGISTRY_PORT") from error
    return listener


def _secret(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartFailed(f"the secret in {file} cannot be read: {error}") from error
    if not text:
        raise StartFailed(f"{file} is empty; a secret is expected there")
    return text
