"""The server process: builds the parts, listens, and dies as vLLM dies.

    SIGTERM                         the engine stops immediately and the listener closes; open responses fall silent
                                    and stay open until their clients leave (seen on vLLM 0.32, undocumented)
    SIGTERM, --shutdown-timeout N   running requests may finish within N s, then the above
    engine death                    /health 503, streams end with an error event, the process exits a second later
    faults.refuse_s                 the listener is closed and every connection reset; listens again afterwards

The socket listens from the start, as vLLM's does: during `--sim-startup-delay-s` connections hang in the backlog.
"""

import asyncio
import contextlib
import hashlib
import logging
import signal
import socket
from dataclasses import replace
from random import Random

import uvicorn

from functions.engines.sim.accept import Acceptor
from functions.engines.sim.app import build_app
from functions.engines.sim.connection import BOUNDS, CONNECTIONS, ClientConnection, OpenProtocol
from functions.engines.sim.core import EngineCore
from functions.engines.sim.exposition import VllmCollector, registry_of
from functions.engines.sim.faults import FaultBox
from functions.engines.sim.kv_events import KvEventPublisher
from functions.engines.sim.kv_transfer import KvTransfers
from functions.engines.sim.lifecycle import Phase
from functions.engines.sim.live import Clock, LiveEngine, SystemClock
from functions.engines.sim.model import AdapterTable, SimulatedModel
from functions.engines.sim.parts import EngineParts
from functions.engines.sim.plain_routes import VLLM_VERSION, load_adapter
from functions.engines.sim.settings import Settings
from functions.http.binding import bind_socket
from functions.http.connections import Connections
from functions.http.guard import Guard
from functions.http.listening import GuardedServer, server_config

_log = logging.getLogger(__name__)
_BACKLOG = 2048
_WATCH_PERIOD_S = 0.05
_DEATH_NOTICE_S = 1.0
"""Time for which a dead engine's server still answers 503; vLLM's watchdog checks every 5 s."""


def assemble(settings: Settings, clock: Clock) -> EngineParts:
    jitter, rng = Random(settings.seed), Random(settings.seed + 1)  # noqa: S311 - reproducible, not secret
    model = SimulatedModel.load(settings.model, settings.served_model_names)
    adapters = AdapterTable(base_names=model.names, max_rank=settings.limits.max_lora_rank)
    faults = FaultBox(settings.faults, rng)
    publisher = KvEventPublisher(settings.kv_events, clock.wall_s) if settings.kv_events.is_on else None
    engine = LiveEngine(EngineCore(settings.limits, settings.costs, jitter), clock, faults, publisher)
    limit = settings.limits.max_model_len_tokens
    acceptor = Acceptor(model, adapters, max_model_len_tokens=limit, can_call_tools=settings.can_call_tools)
    collector = VllmCollector(
        engine, adapters, clock, model_name=model.names[0], kv_bytes_per_token=settings.kv_link.bytes_per_token
    )
    config = hashlib.sha256(repr((model.root, settings.limits)).encode()).hexdigest()[:8]
    return EngineParts(
        settings=settings,
        model=model,
        adapters=adapters,
        engine=engine,
        acceptor=acceptor,
        faults=faults,
        clock=clock,
        registry=registry_of(collector),
        fingerprint=f"vllm-{VLLM_VERSION}-{config}",
        kv_transfers=KvTransfers(settings.kv_link),
    )


class EngineServer(GuardedServer):
    """uvicorn's server that stops as vLLM does, with a listener that can be closed for a while."""

    def __init__(self, parts: EngineParts, *, handle_signals: bool = True) -> None:
        guard = Guard(replace(BOUNDS, keep_alive_s=parts.settings.keep_alive_s), Connections(CONNECTIONS))
        super().__init__(server_config(build_app(parts), guard, OpenProtocol, loop="uvloop", backlog=_BACKLOG), guard)
        self._parts = parts
        self._stopping = asyncio.Event()
        self._handle_signals = handle_signals
        """False if the process is not this server's own."""

    def stop(self) -> None:
        """Stop as on SIGTERM."""
        self._stopping.set()

    async def run_engine(self, sockets: list[socket.socket]) -> None:
        parts = self._parts
        await asyncio.sleep(parts.settings.startup_delay_s)
        for name, path in parts.settings.static_adapters:
            await load_adapter(parts, name, path)
        if self._handle_signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self.stop)
        parts.lifecycle.move(Phase.SERVING)
        with parts.engine.publishing_kv_events():
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(parts.engine.run())
                watch = tasks.create_task(self._watch(sockets))
                tasks.create_task(self._stop_on_request())
                await self._serve(sockets)
                watch.cancel()
                parts.engine.stop()
                self._stopping.set()

    async def _stop_on_request(self) -> None:
        await self._stopping.wait()
        parts = self._parts
        if parts.lifecycle.phase is Phase.SERVING and parts.settings.shutdown_timeout_s > 0:
            parts.lifecycle.move(Phase.DRAINING)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(parts.settings.shutdown_timeout_s):
                    await parts.engine.wait_until_idle()
        if parts.lifecycle.phase is not Phase.STOPPED:
            parts.lifecycle.move(Phase.STOPPED)
        parts.engine.stop()
        self.should_exit = True

    async def _watch(self, sockets: list[socket.socket]) -> None:
        """Apply the faults `engine_dead` and `refuse_s`, which concern the process, and exit when the engine dies."""
        while self._parts.lifecycle.phase in (Phase.SERVING, Phase.DRAINING):
            await asyncio.sleep(_WATCH_PERIOD_S)
            faults = self._parts.faults
            if faults.now.engine_dead or self._parts.engine.dead:
                await self._die()
            elif faults.now.refuse_s is not None:
                refuse_s = faults.now.refuse_s
                faults.merge({"refuse_s": None})
                await self._refuse_for(refuse_s, sockets)

    async def _die(self) -> None:
        if self._parts.lifecycle.phase is Phase.STOPPED:
            return
        self._parts.lifecycle.move(Phase.DEAD)
        self._parts.engine.die()
        await asyncio.sleep(_DEATH_NOTICE_S)
        self.should_exit = True
        self.force_exit = True

    async def _refuse_for(self, seconds: float, sockets: list[socket.socket]) -> None:
        address = sockets[0].getsockname()
        for server in self.servers:
            server.close()
        for protocol in list(self.server_state.connections):
            if isinstance(protocol, OpenProtocol):
                ClientConnection(protocol).reset()
        await asyncio.sleep(seconds)
        sockets[0] = bind(address[0], address[1])
        await self.startup(sockets=sockets)


def bind(host: str, port: int) -> socket.socket:
    listener = bind_socket(host, port)
    listener.listen(_BACKLOG)
    return listener


def run(settings: Settings) -> None:
    listener = bind(settings.host, settings.port)
    for flag in settings.ignored:
        _log.warning("ignored: %s", flag)
    _log.info("listening on %s:%d", *listener.getsockname()[:2])

    async def main() -> None:
        await EngineServer(assemble(settings, SystemClock())).run_engine([listener])

    with asyncio.Runner(loop_factory=uvicorn.Config("").get_loop_factory()) as runner:
        runner.run(main())
