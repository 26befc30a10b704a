"""The gateway process: sockets, TLS, feeds, drain. The composition root; nothing imports it but `__main__`.

uvicorn runs it: its `http=` hook is the fast lane, its lifespan is not used. The listeners are made (or inherited)
here, before anything else, so that a port that is taken is said at once and in words.
"""

import asyncio
import functools
import gc
import logging
import os
import random
import re
import resource
import socket
import ssl
import time
from dataclasses import replace
from ipaddress import ip_network
from types import FrameType
from typing import TYPE_CHECKING

import httpx
import uvicorn

from functions.fleet.bus import BusUnavailable
from functions.fleet.conversation_store import ValkeyConversations
from functions.fleet.quota_leases import ValkeyQuotaBroker
from functions.fleet.snapshot_news import follow_news
from functions.fleet.snapshots import SnapshotFollower, SnapshotRefused, SnapshotSourceUnavailable
from functions.fleet.valkey_bus import ValkeyBus
from functions.gateway import feeds
from functions.gateway.assembly import make_services
from functions.gateway.chat.composition.composer import Composer
from functions.gateway.chat.composition.shared import ChatServices
from functions.gateway.chat.conversations import Conversations
from functions.gateway.chat.tools.calls import ToolCaller, ToolPolicy
from functions.gateway.gateway import Gateway
from functions.gateway.gauges import StateGauges
from functions.gateway.http.asgi import RouteProvider, make_app
from functions.gateway.http.handover import Handover, Inheritance, inherit
from functions.gateway.http.lane import LaneProtocol
from functions.gateway.limits import Limits
from functions.gateway.metrics import Metrics
from functions.gateway.prefix import feeds as prefix_feeds
from functions.gateway.prefix.metrics import ExactPrefixStats
from functions.gateway.quota.leases import QuotaLeases
from functions.gateway.routing.load_client import LoadClient
from functions.gateway.settings import GatewaySettings
from functions.telemetry.exposition import MetricsServer
from functions.telemetry.trace_sink import TraceSink

if TYPE_CHECKING:
    from functions.gateway.batch.service import Batches
    from functions.gateway.prefix.exact_prefixes import ExactPrefixes

_log = logging.getLogger(__name__)
_BACKLOG = 4096
# What the kernel keeps for one client that reads slowly; left alone it grows to 4 MiB, 38 GB of them for 9,500 clients.
# Over 150 ms it leaves each of them 1.5 MB/s.
_SEND_BYTES = 256 * 1024
_SPARE_DESCRIPTORS = 256  # listeners, bus, registry, logs
_READY_CHECKS, _READY_INTERVAL_S = 200, 0.05
_LAST_WORDS_S = 2.0
_AFTER_DRAIN_S = 5.0  # for the last error events to go out


class StartFailed(Exception):
    """The gateway cannot start as configured; the message says what to change."""


def run(settings: GatewaySettings) -> None:
    """Serve until drained; raises StartFailed."""
    inherited = inherit(settings.handover_socket, _listener_count(settings)) if settings.handover_socket else None
    listeners = inherited.listeners if inherited is not None else _bind_all(settings)
    config = _uvicorn_config(settings)
    _raise_descriptor_limit()
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
        self._drain_timeout_s = settings.drain_timeout_s
        self._handover: Handover | None = None
        self._metrics_server: MetricsServer | None = None
        self._bus = ValkeyBus(_bus_url(settings))
        self._exact = _exact_prefixes(settings)
        self._loader = LoadClient(settings.internal_token_file.read_text().strip())
        self._services = make_services(
            pepper=settings.pepper_file.read_bytes().strip(),
            limits=_limits(settings),
            metrics=Metrics(),
            clock=time.monotonic,
            wall_clock=time.time,
            gateway_id=settings.gateway_id or _own_name(settings),
            loader=self._loader,
            telling=self._exact,
            traces=TraceSink(settings.trace_dir, time.time),
            zone=settings.zone,
            router=settings.router,
        )
        self._gateway = Gateway(self._services)
        self._quota_broker = ValkeyQuotaBroker(_bus_url(settings))
        self._services.quotas.leasing = self._quota_leases = QuotaLeases(
            self._quota_broker,
            self._services.gateway_id,
            clock=self._services.clock,
            tasks=self._services.tasks,
            dice=random.random,
            expected_gateways=settings.expected_gateways,
        )
        config.app = make_app(self._gateway, self._optional_parts())
        config.http = functools.partial(LaneProtocol, self._gateway)  # type: ignore[assignment]

    def _optional_parts(self) -> list[RouteProvider]:
        """What requests need not know of: chats of several requests, files and batches. What routes they have."""
        settings, gateway = self._settings, self._gateway
        self._conversations = ValkeyConversations(_bus_url(settings), shelf_bytes=settings.conversation_tenant_bytes)
        kept = Conversations(self._conversations, settings.pepper_file.read_bytes().strip())
        composer = Composer(ChatServices(self._services, gateway.handle, ToolCaller(_tool_policy(settings)), kept))
        gateway.interceptors = (composer,)
        self._batches, batch_routes = _batches(settings, gateway)
        return [composer.add_routes, *batch_routes]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        services, settings = self._services, self._settings
        services.traces.start()
        await self._start_feeds()
        if self._inherited is not None:
            await self._until_ready()
        await super().startup([])  # it listens to nothing: it has no bound for a TLS handshake, `_listen` has
        main, *rest = self._listeners
        await self._listen(main, self.config.ssl)
        if settings.plain_port:
            await self._listen(rest.pop(0), None)
        if settings.metrics_port:
            refresh = StateGauges(services).scrape
            loop = asyncio.get_running_loop()
            self._metrics_server = MetricsServer(rest.pop(0), services.metrics.registry, refresh, loop)
            self._metrics_server.start()
        self._open_handover()
        gc.collect()
        gc.freeze()  # what exists now lives for ever; collections need not look at it again

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._services.state.draining = True
        if self._batches is not None:
            self._services.tasks.once("batches leave", self._batches.close())
        if self._handover is not None:
            self._handover.close()
        if self._metrics_server is not None:
            await asyncio.to_thread(self._metrics_server.close)
        _log.info("draining %d requests", len(self._services.open_requests))
        asyncio.get_running_loop().call_later(self._drain_timeout_s, self._gateway.cut_short)
        self.config.timeout_graceful_shutdown = int(self._drain_timeout_s + _AFTER_DRAIN_S)
        await super().shutdown(sockets)
        if self._batches is not None:
            await self._batches.close()
        await self._services.tasks.close()
        if self._batches is not None:
            self._batches.close_store()
        if self._exact is not None:
            self._exact.close()
        await self._last_words()
        await asyncio.to_thread(self._services.traces.close)
        self._services.upstreams.close()
        await self._loader.close()
        await self._conversations.close()
        await self._quota_broker.close()

    async def _start_feeds(self) -> None:
        gateway, services, settings = self._gateway, self._services, self._settings
        follower = SnapshotFollower(
            client=httpx.AsyncClient(verify=_trusted(settings), timeout=40.0),
            registry_url=settings.registry_url,
            token=settings.internal_token_file.read_text().strip(),
            cache_file=settings.snapshot_cache_file,
            on_swap=gateway.swap,
        )
        follower.load_cached()
        services.state.snapshot_source = follower
        bus = self._bus
        services.tasks.forever("snapshot", follower.run, expected=(SnapshotSourceUnavailable, SnapshotRefused))
        news = functools.partial(follow_news, bus, follower.heard)
        services.tasks.forever("snapshot news", news, expected=(BusUnavailable,))
        services.tasks.forever("bus", functools.partial(feeds.follow_bus, gateway, bus))
        self._start_rollout_feeds()
        self._start_prefix_feeds()
        services.tasks.forever("quota leases", self._quota_leases.run)
        if self._batches is not None:
            self._batches.start()
        services.tasks.forever("sweep", functools.partial(feeds.sweep, gateway))

    def _start_rollout_feeds(self) -> None:
        for name, feed in (
            ("evidence", feeds.publish_evidence),
            ("pools", feeds.publish_pools),
            ("own pins", feeds.publish_pins),
            ("pins", feeds.follow_pins),
        ):
            self._services.tasks.forever(
                name, functools.partial(feed, self._services, self._bus), expected=(BusUnavailable,)
            )

    def _start_prefix_feeds(self) -> None:
        exact, tasks = self._exact, self._services.tasks
        if exact is None:
            return
        exact.start(asyncio.get_running_loop().call_soon_threadsafe)
        self._services.metrics.registry.register(ExactPrefixStats(exact))
        follow = functools.partial(prefix_feeds.follow_prefixes, exact, self._bus)
        ask = functools.partial(prefix_feeds.ask_for_prefixes, self._services, exact, self._bus)
        tasks.forever("prefixes", follow, expected=(BusUnavailable,))
        tasks.forever("asking for prefixes", ask, expected=(BusUnavailable,))
        tasks.forever("prefix sweep", functools.partial(prefix_feeds.sweep, exact))

    async def _last_words(self) -> None:
        """What ended, and which sessions began, since this was told for the last time: nobody else has seen it."""
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                await feeds.publish_evidence_once(self._services, self._bus)
                await feeds.publish_pins_once(self._services, self._bus)
                await self._bus.close()
        except (BusUnavailable, TimeoutError) as error:
            _log.warning("the last evidence and pins of rollouts could not be told: %s", error)

    async def _until_ready(self) -> None:
        """Until then the predecessor, which knows the fleet, answers better than we would."""
        for _ in range(_READY_CHECKS):
            if self._gateway.not_ready_reason() is None:
                return
            await asyncio.sleep(_READY_INTERVAL_S)
        _log.warning("taking over although not ready: %s", self._gateway.not_ready_reason())

    async def _listen(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        def make_protocol() -> LaneProtocol:
            return LaneProtocol(self._gateway, self.config, self.server_state, self.lifespan.state)

        loop = asyncio.get_running_loop()
        handshake_s = self._services.limits.head_s if tls is not None else None
        self.servers.append(
            await loop.create_server(
                make_protocol, sock=listener, backlog=_BACKLOG, ssl=tls, ssl_handshake_timeout=handshake_s
            )
        )

    def _open_handover(self) -> None:
        path = self._settings.handover_socket
        if path is not None:
            self._handover = Handover(path, [listener.dup() for listener in self._listeners], self._drain)
            self._handover.open()
            self._services.tasks.forever("handover", self._handover.serve)
        if self._inherited is not None:
            self._inherited.announce_serving()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A second signal, or one after a handover: what is open gets the ordinary time, from now."""
        if self.should_exit:
            asyncio.get_running_loop().call_later(self._settings.drain_timeout_s, self._gateway.cut_short)
        super().handle_exit(sig, frame)

    def _drain(self) -> None:
        """A successor serves: take all the time that open streams need."""
        self._drain_timeout_s = self._settings.handover_drain_timeout_s
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
        ssl_certfile=str(settings.tls_cert_file) if settings.tls_cert_file else None,
        ssl_keyfile=str(settings.tls_key_file) if settings.tls_key_file else None,
    )


def _raise_descriptor_limit() -> None:
    """The usual soft limit of 1,024 bears 384 streams; the hard one is what the operator allows."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _limits(settings: GatewaySettings) -> Limits:
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    bearable = max(1, (descriptors - _SPARE_DESCRIPTORS) // 2)
    return replace(
        Limits(),
        connections=min(settings.max_connections, bearable),
        uploads_bytes=settings.uploads_bytes,
        lookups_per_minute=settings.lookups_per_minute,
        first_byte_s=settings.first_byte_s,
        idle_s=settings.idle_s,
        quarantine_after_replicas=settings.quarantine_after_replicas,
        cold_wait_s=settings.jit_wait_s,
        prefix_blocks=settings.prefix_blocks,
    )


def _exact_prefixes(settings: GatewaySettings) -> "ExactPrefixes | None":
    """Imported only where it is used: it brings tokenizers, templates and numpy, and an eighth of a second."""
    if settings.tokenizers_dir is None:
        return None
    from functions.gateway.prefix.exact_prefixes import ExactPrefixes

    return ExactPrefixes(settings.tokenizers_dir, time.monotonic)


def _batches(settings: GatewaySettings, gateway: Gateway) -> "tuple[Batches | None, list[RouteProvider]]":
    """Imported only where a store is configured: its client is 25 MB."""
    if settings.s3_endpoint_url is None:
        return None, []
    from functions.artifacts.s3 import CredentialsInvalid, S3Settings, S3Store, load_credentials
    from functions.gateway.batch import routes
    from functions.gateway.batch.limits import BatchLimits
    from functions.gateway.batch.service import Batches

    if settings.s3_credentials_file is None:
        raise StartFailed("SHOAL_GATEWAY_S3_CREDENTIALS_FILE is not set, though there is an S3_ENDPOINT_URL")
    try:
        credentials = load_credentials(settings.s3_credentials_file)
    except CredentialsInvalid as error:
        raise StartFailed(str(error)) from error
    limits = replace(
        BatchLimits(),
        file_bytes=settings.file_max_bytes,
        file_retention_s=settings.file_retention_days * 24 * 3600,
        lines_in_flight=settings.batch_lines_in_flight,
        lines_in_flight_per_tenant=max(1, settings.batch_lines_in_flight // 2),
    )
    store = S3Store(S3Settings(settings.s3_endpoint_url, credentials, settings.batches_bucket))
    batches = Batches(gateway.services, gateway.handle, store, limits)
    return batches, [functools.partial(routes.add_routes, batches)]


def _tool_policy(settings: GatewaySettings) -> ToolPolicy:
    """Where tools may lie; StartFailed where a network is none."""
    try:
        networks = tuple(ip_network(text.strip()) for text in settings.tool_private_networks.split(",") if text.strip())
    except ValueError as error:
        raise StartFailed(f"SHOAL_GATEWAY_TOOL_PRIVATE_NETWORKS: {error}") from error
    return ToolPolicy(networks=networks, ca_file=settings.tool_ca_file, secrets_dir=settings.tool_secrets_dir)


def _own_name(settings: GatewaySettings) -> str:
    """The host's name and the port: two gateways that answer at one place follow each other, as a handover's do.

    Unless they share the port: then they are there at the same time, and the process tells them apart.
    """
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:100]
    return f"{host}-{settings.port}-{os.getpid()}" if settings.reuse_port else f"{host}-{settings.port}"


def _listener_ports(settings: GatewaySettings) -> list[tuple[str, int]]:
    ports = [("PORT", settings.port), ("PLAIN_PORT", settings.plain_port), ("METRICS_PORT", settings.metrics_port)]
    return [(name, port) for name, port in ports if port]


def _listener_count(settings: GatewaySettings) -> int:
    return len(_listener_ports(settings))


def _bind_all(settings: GatewaySettings) -> list[socket.socket]:
    listeners: list[socket.socket] = []
    try:
        for name, port in _listener_ports(settings):
            shared = settings.reuse_port and name != "METRICS_PORT"
            listeners.append(_bind(settings.host, port, f"SHOAL_GATEWAY_{name}", shared=shared))
    except StartFailed:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _bind(host: str, port: int, setting: str, *, shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)  # its connections have it from it
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise StartFailed(f"cannot listen on {host}:{port}: {error.strerror}; free it or set {setting}") from error
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def _trusted(settings: GatewaySettings) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(settings.registry_ca_file) if settings.registry_ca_file else None)


def _bus_url(settings: GatewaySettings) -> str:
    if settings.bus_password_file is None:
        return settings.bus_url
    password = settings.bus_password_file.read_text().strip()
    return settings.bus_url.replace("://", f"://:{password}@", 1)
