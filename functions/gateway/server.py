"""The gateway process: sockets, TLS, feeds, drain. The composition root; nothing imports it but `__main__`.

uvicorn runs it: its `http=` hook is the fast lane, its lifespan is not used. The listeners are made (or inherited)
here, before anything else, so that a port that is taken is said at once and in words.
"""

import asyncio
import functools
import gc
import logging
import resource
import socket
import time
from dataclasses import replace

import httpx
import uvicorn

from functions.fleet.snapshots import SnapshotFollower, SnapshotRefused, SnapshotSourceUnavailable
from functions.fleet.valkey_bus import ValkeyBus
from functions.gateway import feeds
from functions.gateway.app import make_app
from functions.gateway.core import Gateway
from functions.gateway.exposition import MetricsServer
from functions.gateway.handover import Handover, Inheritance, inherit
from functions.gateway.lane import LaneProtocol
from functions.gateway.limits import Limits
from functions.gateway.metrics import Metrics
from functions.gateway.settings import GatewaySettings

_log = logging.getLogger(__name__)
_BACKLOG = 4096
_SPARE_DESCRIPTORS = 256  # listeners, bus, registry, logs


class StartFailed(Exception):
    """The gateway cannot start as configured; the message says what to change."""


def run(settings: GatewaySettings) -> None:
    """Serve until drained; raises StartFailed."""
    inherited = inherit(settings.handover_socket, _listener_count(settings)) if settings.handover_socket else None
    listeners = inherited.listeners if inherited is not None else _bind_all(settings)
    config = _uvicorn_config(settings)
    server = _Server(config, settings, listeners, inherited)
    server.run(sockets=[listeners[0]])


class _Server(uvicorn.Server):
    """uvicorn's server with a second listener, the feeds, and a drain that a successor can start."""

    def __init__(
        self,
        config: uvicorn.Config,
        settings: GatewaySettings,
        listeners: list[socket.socket],
        inherited: Inheritance | None,
    ) -> None:
        super().__init__(config)
        self._settings = settings
        self._listeners = listeners
        self._inherited = inherited
        self._handover: Handover | None = None
        self._metrics_server: MetricsServer | None = None
        self._gateway = Gateway(
            pepper=settings.pepper_file.read_bytes().strip(),
            limits=_limits(settings),
            metrics=Metrics(),
            clock=time.monotonic,
            wall_clock=time.time,
        )
        config.app = make_app(self._gateway)
        config.http = functools.partial(LaneProtocol, self._gateway)  # type: ignore[assignment]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        gateway, settings = self._gateway, self._settings
        await self._start_feeds()
        await super().startup(sockets)
        rest = self._listeners[1:]
        if settings.plain_port:
            await self._listen_plain(rest.pop(0))
        if settings.metrics_port:
            refresh = functools.partial(gateway.metrics.scrape, gateway)
            loop = asyncio.get_running_loop()
            self._metrics_server = MetricsServer(rest.pop(0), gateway.metrics.registry, refresh, loop)
            self._metrics_server.start()
        self._open_handover()
        gc.collect()
        gc.freeze()  # what exists now lives for ever; collections need not look at it again

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gateway.draining = True
        if self._handover is not None:
            self._handover.close()
        if self._metrics_server is not None:
            await asyncio.to_thread(self._metrics_server.close)
        _log.info("draining %d requests", self._gateway.open_exchanges)
        await super().shutdown(sockets)
        await self._gateway.tasks.close()
        self._gateway.upstreams.close()

    async def _start_feeds(self) -> None:
        gateway, settings = self._gateway, self._settings
        follower = SnapshotFollower(
            client=httpx.AsyncClient(verify=_verify(settings), timeout=40.0),
            registry_url=settings.registry_url,
            token=settings.internal_token_file.read_text().strip(),
            cache_file=settings.snapshot_cache_file,
            on_swap=gateway.swap,
        )
        follower.load_cached()
        bus = ValkeyBus(_bus_url(settings))
        gateway.tasks.forever("snapshot", follower.run, expected=(SnapshotSourceUnavailable, SnapshotRefused))
        gateway.tasks.forever("bus", functools.partial(feeds.follow_bus, gateway, bus))
        gateway.tasks.forever("sweep", functools.partial(feeds.sweep, gateway))

    async def _listen_plain(self, listener: socket.socket) -> None:
        def make_protocol() -> LaneProtocol:
            return LaneProtocol(self._gateway, self.config, self.server_state, self.lifespan.state)

        loop = asyncio.get_running_loop()
        self.servers.append(await loop.create_server(make_protocol, sock=listener, backlog=_BACKLOG))

    def _open_handover(self) -> None:
        path = self._settings.handover_socket
        if path is not None:
            self._handover = Handover(path, [listener.dup() for listener in self._listeners], self._drain)
            self._handover.open()
            self._gateway.tasks.forever("handover", self._handover.serve)
        if self._inherited is not None:
            self._inherited.announce_serving()

    def _drain(self) -> None:
        self.should_exit = True


def _uvicorn_config(settings: GatewaySettings) -> uvicorn.Config:
    return uvicorn.Config(
        app=None,  # type: ignore[arg-type]  # set by _Server, which needs the config first
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(settings.drain_timeout_s),
        ssl_certfile=str(settings.tls_cert_file) if settings.tls_cert_file else None,
        ssl_keyfile=str(settings.tls_key_file) if settings.tls_key_file else None,
    )


def _limits(settings: GatewaySettings) -> Limits:
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    bearable = max(1, (descriptors - _SPARE_DESCRIPTORS) // 2)
    return replace(
        Limits(),
        connections=min(settings.max_connections, bearable),
        first_byte_s=settings.first_byte_s,
        idle_s=settings.idle_s,
    )


def _listener_ports(settings: GatewaySettings) -> list[tuple[str, int]]:
    ports = [("PORT", settings.port), ("PLAIN_PORT", settings.plain_port), ("METRICS_PORT", settings.metrics_port)]
    return [(name, port) for name, port in ports if port]


def _listener_count(settings: GatewaySettings) -> int:
    return len(_listener_ports(settings))


def _bind_all(settings: GatewaySettings) -> list[socket.socket]:
    return [_bind(settings.host, port, f"SHOAL_GATEWAY_{name}") for name, port in _listener_ports(settings)]


def _bind(host: str, port: int, setting: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise StartFailed(f"cannot listen on {host}:{port}: {error.strerror}; free it or set {setting}") from error
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def _verify(settings: GatewaySettings) -> str | bool:
    return str(settings.registry_ca_file) if settings.registry_ca_file else True


def _bus_url(settings: GatewaySettings) -> str:
    if settings.bus_password_file is None:
        return settings.bus_url
    password = settings.bus_password_file.read_text().strip()
    return settings.bus_url.replace("://", f"://:{password}@", 1)
