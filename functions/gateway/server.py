"""The gateway process: sockets, TLS, parts, drain. It is the composition root; only `__main__` imports it.

uvicorn runs it: the fast lane is uvicorn's `http=` hook, and uvicorn's lifespan is off. Neighbours: `listeners` binds
the sockets, `configured` makes the parts that depend on settings, `assembly` makes what requests share, and
`background` runs the background tasks.
"""

import asyncio
import functools
import gc
import logging
import random
import socket
import ssl
import time
from types import FrameType
from typing import cast

import uvicorn

from functions.fleet.conversation_store import ValkeyConversations
from functions.fleet.quota_leases import ValkeyQuotaBroker
from functions.fleet.valkey_bus import ValkeyBus
from functions.gateway import configured, memory
from functions.gateway.assembly import make_services
from functions.gateway.background import Background
from functions.gateway.chat.composition.composer import Composer
from functions.gateway.chat.composition.shared import ChatServices
from functions.gateway.chat.conversations import KeptConversations
from functions.gateway.chat.tools.calls import ToolCaller
from functions.gateway.gateway import Gateway
from functions.gateway.gauges import StateGauges
from functions.gateway.http.asgi import RouteProvider, make_app
from functions.gateway.http.handover import Handover, Inheritance, inherit
from functions.gateway.http.lane import LaneProtocol
from functions.gateway.listeners import BACKLOG, bind_all, listener_count, raise_descriptor_limit
from functions.gateway.metrics import Metrics
from functions.gateway.quota import gateway_count
from functions.gateway.quota.leases import QuotaLeases
from functions.gateway.registry_routes import RegistryForwarding
from functions.gateway.routing.load_client import LoadClient
from functions.gateway.routing.router import OtherChoice
from functions.gateway.settings import GatewaySettings
from functions.gateway.trace_outputs import TraceOutputs
from functions.gateway.usage.delivery import UsageCollector
from functions.http.listening import Handshake, TlsListener, listen
from functions.telemetry.exposition import MetricsServer
from functions.telemetry.memory import limit_bytes, warn_if_over

_log = logging.getLogger(__name__)
_READY_CHECKS, _READY_INTERVAL_S = 200, 0.05
_AFTER_DRAIN_S = 5.0  # for the last error events to be sent


def run(settings: GatewaySettings, other: OtherChoice | None = None) -> None:
    """Serve until drained, on a running gateway's listeners if there is one to succeed; raises StartFailed.

    `other` replaces the router's choice of replicas.
    """
    inherited = inherit(settings.handover_socket, listener_count(settings)) if settings.handover_socket else None
    listeners = inherited.listeners if inherited is not None else bind_all(settings)
    config = _uvicorn_config(settings)
    raise_descriptor_limit()
    warn_if_over(memory.maximum_parts(settings, pools=1), limit_bytes())
    server = _Server(config, settings, listeners, inherited, other)
    server.run(sockets=[listeners[0]])


class _Server(uvicorn.Server):
    """uvicorn's server with a second listener, the feeds, and a drain that a successor can start."""

    def __init__(
        self,
        config: uvicorn.Config,
        settings: GatewaySettings,
        listeners: list[socket.socket],
        inherited: Inheritance | None,
        other: OtherChoice | None,
    ) -> None:
        super().__init__(config)
        self._settings = settings
        self._listeners = listeners
        self._inherited = inherited
        self._drain_timeout_s = settings.drain_timeout_s
        self._handover: Handover | None = None
        self._metrics_server: MetricsServer | None = None
        bus_password = configured.bus_password(settings)
        self._bus = ValkeyBus(settings.bus_url, password=bus_password)
        self._exact = configured.exact_prefixes(settings)
        self._trace_outputs = TraceOutputs(settings, settings.gateway_id or configured.own_name(settings))
        self._credentials = configured.credentials(settings)
        of_token = functools.partial(self._credentials.secret, "operate") if self._credentials.is_token else ""
        self._loader = LoadClient(functools.partial(self._credentials.secret, "load"), former=of_token)
        self._services = make_services(
            pepper=settings.pepper_file.read_bytes().strip(),
            limits=configured.limits_of(settings),
            metrics=Metrics(named_models=settings.metrics_models),
            clock=time.monotonic,
            wall_clock=time.time,
            gateway_id=settings.gateway_id or configured.own_name(settings),
            loader=self._loader,
            telling=self._exact,
            traces=self._trace_outputs.sink,
            zone=settings.zone,
            other=other,
            origins=configured.origins(settings),
        )
        self._gateway = Gateway(self._services)
        self._usage = configured.usage_delivery(
            settings, self._services, functools.partial(self._credentials.bearer, "account")
        )
        self._services.metrics.registry.register(UsageCollector(self._usage))
        gateways_file = settings.snapshot_cache_file.with_name("gateways")
        self._quota_broker = ValkeyQuotaBroker(settings.bus_url, password=bus_password)
        self._services.quotas.leasing = quota_leases = QuotaLeases(
            self._quota_broker,
            self._services.gateway_id,
            clock=self._services.clock,
            tasks=self._services.tasks,
            uniform=random.random,
            expected_gateways=gateway_count.last_known(gateways_file, settings.expected_gateways),
        )
        self._background = Background(
            settings=settings,
            gateway=self._gateway,
            bus=self._bus,
            credentials=self._credentials,
            exact=self._exact,
            quota_leases=quota_leases,
            gateways_file=gateways_file,
            usage=self._usage,
        )
        config.app = make_app(self._gateway, self._optional_parts())
        config.http = functools.partial(LaneProtocol, self._gateway)  # type: ignore[assignment]

    def _optional_parts(self) -> list[RouteProvider]:
        """Create the parts that requests do not depend on (composed chats, files and batches, forwarding to the
        registry); return their routes.
        """
        settings, gateway = self._settings, self._gateway
        self._conversations = ValkeyConversations(
            settings.bus_url,
            password=configured.bus_password(settings),
            shelf_bytes=settings.conversation_tenant_bytes,
        )
        kept = KeptConversations(self._conversations, settings.pepper_file.read_bytes().strip())
        composer = Composer(
            ChatServices(self._services, gateway.handle, ToolCaller(configured.tool_policy(settings)), kept)
        )
        gateway.interceptors = (composer,)
        self._batches, batch_routes = configured.batches(settings, gateway)
        self._forwarding = RegistryForwarding(self._services, configured.registry_client(settings))
        return [composer.add_routes, *batch_routes, self._forwarding.add_routes]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        services, settings = self._services, self._settings
        self._trace_outputs.start()
        services.metrics.registry.register(self._trace_outputs)
        self._background.start()
        if self._batches is not None:
            self._batches.start()
        if self._inherited is not None:
            await self._until_ready()
        await super().startup([])  # without sockets: uvicorn has no timeout for a TLS handshake, `_listen` has
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
        gc.freeze()  # objects that exist now live until the end; collections can skip them

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
        await self._finish_handshakes()
        self.config.timeout_graceful_shutdown = int(self._drain_timeout_s + _AFTER_DRAIN_S)
        await super().shutdown(sockets)
        if self._batches is not None:
            await self._batches.close()
        await self._services.tasks.close()
        if self._batches is not None:
            self._batches.close_store()
        if self._exact is not None:
            self._exact.close()
        await self._background.publish_last_state()
        await self._usage.close()
        await asyncio.to_thread(self._trace_outputs.close)
        self._services.upstreams.close()
        await self._loader.close()
        await self._forwarding.close()
        await self._conversations.close()
        await self._quota_broker.close()

    async def _until_ready(self) -> None:
        """Wait, for a limited time, until this gateway is ready: the predecessor, which knows the fleet, answers."""
        for _ in range(_READY_CHECKS):
            if self._gateway.not_ready_reason() is None:
                return
            await asyncio.sleep(_READY_INTERVAL_S)
        _log.warning("taking over although not ready: %s", self._gateway.not_ready_reason())

    async def _listen(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        services = self._services

        def make_protocol(handshake: Handshake | None) -> LaneProtocol:
            protocol = LaneProtocol(self._gateway, self.config, self.server_state, self.lifespan.state)
            protocol.stands_for = handshake
            return protocol

        server = await listen(
            listener,
            make_protocol,
            services.connections,
            tls=tls,
            handshake_s=services.limits.head_s,
            clock=services.clock,
            backlog=BACKLOG,
        )
        self.servers.append(cast(asyncio.base_events.Server, server))

    async def _finish_handshakes(self) -> None:
        """Accept no more connections, and finish TLS handshakes under way, which uvicorn would ignore."""
        for server in self.servers:
            server.close()
        for server in self.servers:
            if isinstance(server, TlsListener):
                await server.wait_closed()

    def _open_handover(self) -> None:
        path = self._settings.handover_socket
        if path is not None:
            self._handover = Handover(path, [listener.dup() for listener in self._listeners], self._drain)
            self._handover.open()
            self._services.tasks.forever("handover", self._handover.serve)
        if self._inherited is not None:
            self._inherited.announce_serving()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain on a signal; on a second one, or after a handover, end open requests `drain_timeout_s` from now."""
        if self.should_exit:
            asyncio.get_running_loop().call_later(self._settings.drain_timeout_s, self._gateway.cut_short)
        super().handle_exit(sig, frame)

    def _drain(self) -> None:
        """Drain after a successor has started to serve: open streams and idle clients get the longer handover times.

        A connection that closes just as its client sends is an error for the client; one in use is told to close by a
        header.
        """
        self._services.http.lame_duck_s = self._services.limits.lame_duck_handover_s
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
        proxy_headers=False,
        date_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=75,
        ssl_certfile=str(settings.tls_cert_file) if settings.tls_cert_file else None,
        ssl_keyfile=str(settings.tls_key_file) if settings.tls_key_file else None,
    )
