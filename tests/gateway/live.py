"""A gateway on real sockets: uvicorn and uvloop in a separate thread, as in production. Engines and clients are played
on the test's loop, so that neither loop hides a stall of the other."""

import asyncio
import contextlib
import functools
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import orjson
import uvicorn
import uvloop

from functions.decisions.catalogue import Catalogue
from functions.fleet.bus import BusUnavailable
from functions.fleet.conversation_store import ValkeyConversations
from functions.fleet.valkey_bus import ValkeyBus
from functions.gateway import feeds
from functions.gateway.assembly import make_services
from functions.gateway.chat.composition.composer import Composer
from functions.gateway.chat.composition.shared import ChatServices
from functions.gateway.chat.conversations import KeptConversations
from functions.gateway.chat.tools.calls import ToolCaller, ToolPolicy
from functions.gateway.gateway import Gateway
from functions.gateway.http.asgi import make_app
from functions.gateway.http.lane import LaneProtocol
from functions.gateway.limits import Limits
from functions.gateway.metrics import Metrics
from functions.gateway.routing.load_client import LoadClient
from functions.http.listening import Handshake, listen
from tests.gateway import sse
from tests.gateway.client_rig import HttpAnswer, get, read_answers
from tests.gateway.rig import NOW_UNIX_S, PEPPER, catalogue, heartbeat

START_TIMEOUT_S = 60.0
PATIENCE_S = 60.0  # upper bound for events that must happen, however slow a shared machine is
SWEEP_S = 0.05  # shorter than the gateway's own period, because the tests' limits are short
CALL_S = 60.0  # likewise for stock clients, whose default of 5 s also covers the TLS handshake


class LiveGateway:
    """A gateway on two loopback ports: `plain_port` and `tls_port`.

    With a bus it publishes and follows rollouts; with a loader it requests adapters from agents.
    """

    def __init__(
        self,
        limits: Limits,
        certificate: tuple[Path, Path],
        *,
        gateway_id: str = "gateway",
        bus_url: str | None = None,
        token: str | None = None,
        first: Catalogue | None = None,
        conversations_url: str | None = None,
    ) -> None:
        # All tests send the same prompt and break replicas with it; quarantine must not blame the prompt.
        self._limits = replace(limits, quarantine_after_replicas=0)
        self._certificate = certificate
        self._gateway_id, self._bus_url, self._token = gateway_id, bus_url, token
        self._first = first or catalogue()
        self._conversations_url = conversations_url
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()), name="gateway", daemon=True)
        self._beats = 0

    def __enter__(self) -> "LiveGateway":
        self._thread.start()
        assert self._ready.wait(START_TIMEOUT_S), "the gateway did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(START_TIMEOUT_S)
        assert not self._thread.is_alive(), "the gateway did not stop"

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        loader = LoadClient(self._token) if self._token is not None else None
        services = make_services(
            pepper=PEPPER,
            limits=self._limits,
            metrics=Metrics(),
            clock=time.monotonic,
            wall_clock=lambda: NOW_UNIX_S,
            gateway_id=self._gateway_id,
            loader=loader,
        )
        self.gateway = Gateway(services)
        self.gateway.swap(self._first)
        store = ValkeyConversations(self._conversations_url) if self._conversations_url is not None else None
        self.config = uvicorn.Config(
            make_app(self.gateway, [self._composer(store).add_routes] if store is not None else ()),
            http=functools.partial(LaneProtocol, self.gateway),  # type: ignore[arg-type]
            host="127.0.0.1",
            port=0,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=5,
        )
        self._server = uvicorn.Server(self.config)
        serving = self._loop.create_task(self._server.serve())
        while not self._server.started:
            await asyncio.sleep(0.01)
        self.plain_port = self._server.servers[0].sockets[0].getsockname()[1]
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*self._certificate)
        listener = socket.create_server(("127.0.0.1", 0))
        self.tls_port = listener.getsockname()[1]
        services = self.gateway.services
        secure = await listen(
            listener,
            self._protocol,
            services.connections,
            tls=tls,
            handshake_s=self._limits.head_s,
            clock=services.clock,
        )
        self._server.servers.append(cast(Any, secure))
        self.gateway.services.tasks.forever("heartbeats", functools.partial(_go_on_beating, self.gateway))
        self.gateway.services.tasks.forever("sweep", functools.partial(feeds.sweep, self.gateway, SWEEP_S))
        bus = ValkeyBus(self._bus_url) if self._bus_url is not None else None
        if bus is not None:
            self._follow(bus)
        self._ready.set()
        await serving
        await self.gateway.services.tasks.close()
        self.gateway.services.upstreams.close()
        if bus is not None:
            await bus.close()
        if store is not None:
            await store.close()
        if loader is not None:
            await loader.close()

    def _composer(self, store: ValkeyConversations) -> Composer:
        kept = KeptConversations(store, PEPPER)
        composer = Composer(ChatServices(self.gateway.services, self.gateway.handle, ToolCaller(ToolPolicy()), kept))
        self.gateway.interceptors = (composer,)
        return composer

    def _follow(self, bus: ValkeyBus) -> None:
        """Start the same bus tasks as the server."""
        services = self.gateway.services
        services.tasks.forever("bus", functools.partial(feeds.follow_bus, self.gateway, bus))
        for feed in (feeds.publish_evidence, feeds.publish_pins, feeds.follow_pins):
            services.tasks.forever(feed.__name__, functools.partial(feed, services, bus), expected=(BusUnavailable,))

    def _protocol(self, handshake: Handshake | None) -> LaneProtocol:
        protocol = LaneProtocol(self.gateway, self.config, self._server.server_state, {})
        protocol.stands_for = handshake
        return protocol

    # called from the test's thread

    @contextlib.asynccontextmanager
    async def standing_still(self, still_s: float) -> AsyncIterator[None]:
        """Run the body while a read callback blocks the gateway's loop for `still_s`; expired timers run next."""
        here, there = socket.socketpair()
        began, over = threading.Event(), threading.Event()

        def stand_still() -> None:
            self._loop.remove_reader(there)
            began.set()
            time.sleep(still_s)  # real time, because uvloop's clock is real
            over.set()

        await asyncio.sleep(4 * SWEEP_S)  # after another stop: a permanently late loop still judges its peers
        with here, there:
            self._loop.call_soon_threadsafe(self._loop.add_reader, there, stand_still)
            here.send(b"x")
            assert began.wait(PATIENCE_S)
            yield
            assert not over.is_set(), "the test took longer than the gateway stood still"
            await asyncio.to_thread(over.wait, PATIENCE_S)

    def call(self, act: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return act()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE_S)

    def beat(self, replica: str, port: int, **changes: Any) -> None:
        self._beats += 1
        beat = heartbeat(replica, port, sequence=self._beats, **changes)
        self.call(lambda: self.gateway.receive_heartbeat(beat))

    def refill_retries(self) -> None:
        for budget in self.gateway.services.retry_budgets._pools.values():
            budget.tokens = 10.0

    def open_requests(self) -> int:
        return int(
            self.call(
                lambda: (
                    len(self.gateway.services.open_requests) + sum(self.gateway.services.router.load.in_flight.values())
                )
            )
        )


async def _go_on_beating(gateway: Gateway) -> None:
    """Keep replicas alive that were reported ready, so that a slow machine does not make them look silent."""
    while True:
        await asyncio.sleep(SWEEP_S)
        for known in gateway.services.fleet._known.values():
            if known.heartbeat.phase == "ready":
                known.seen_s = gateway.services.clock()


# engines


@dataclass
class Served:
    """One request at a played engine."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    head: bytes
    body: dict[str, Any]
    go_on: asyncio.Event = field(default_factory=asyncio.Event)  # set by the test, for scripts that wait for it

    @property
    def model(self) -> str:
        return str(self.body["model"])

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def begin_stream(self) -> None:
        head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        await self.send(head)

    async def event(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_stream(self) -> None:
        await self.send(b"0\r\n\r\n")

    async def answer(
        self, body: bytes, status: int = 200, content_type: str = "application/json", extra: str = ""
    ) -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\n{extra}content-length: {len(body)}\r\n\r\n"
        await self.send(head.encode() + body)

    async def until_dropped(self) -> None:
        """Wait until the gateway has closed this connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


Script = Callable[[Served], Awaitable[None]]


async def well(served: Served) -> None:
    """Answer as an engine should, and repeat the user's words."""
    prompt = served.body.get("prompt") or served.body["messages"][-1]["content"]
    if not served.body.get("stream"):
        await served.answer(sse.whole(served.model, f"you said {prompt}"))
        return
    await served.begin_stream()
    await served.event(sse.role(served.model))
    for word in ("you", " said ", prompt):
        await served.event(sse.token(served.model, word))
    await served.event(sse.finish(served.model))
    if served.body["stream_options"]["include_usage"]:
        await served.event(sse.usage(served.model))
    await served.event(sse.DONE)
    await served.end_stream()


@dataclass
class PlayedEngine:
    """A played engine on its own port, which the gateway knows as a replica."""

    name: str
    script: Script
    served: list[Served] = field(default_factory=list)
    dropped_at_s: list[float] = field(default_factory=list)
    port: int = 0

    async def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                served = Served(reader, writer, head, orjson.loads(await reader.readexactly(length)))
                self.served.append(served)
                await self.script(served)
        self.dropped_at_s.append(time.monotonic())
        writer.transport.abort()

    async def dropped_within_s(self, since_s: float, timeout_s: float = PATIENCE_S) -> float:
        """Return how many seconds after `since_s` the gateway closed its connection."""
        async with asyncio.timeout(timeout_s):
            while not self.dropped_at_s:
                await asyncio.sleep(0.005)
        return self.dropped_at_s[-1] - since_s


_names = iter(range(10**9))


@contextlib.asynccontextmanager
async def engine(live: LiveGateway, script: Script = well, *, preferred: bool = False) -> AsyncIterator[PlayedEngine]:
    """Start a played engine. With `preferred`, routing chooses it before the others while it is idle."""
    played = PlayedEngine(f"replica-{next(_names)}", script)
    server = await asyncio.start_server(played.on_connection, "127.0.0.1", 0)
    played.port = server.sockets[0].getsockname()[1]
    cost_ms = 0.0 if preferred else 20.0  # more than the credit for a conversation's home
    live.call(live.refill_retries)  # otherwise tests that break replicas in sequence would exhaust the budget
    live.beat(played.name, played.port, prefill_ms_per_token=cost_ms, service_ms=0.0)
    try:
        yield played
    finally:
        live.beat(played.name, played.port, phase="dead")
        server.close()
        for served in played.served:
            served.writer.transport.abort()
        await server.wait_closed()


# clients


@dataclass(frozen=True)
class Way:
    """A way to reach the gateway: which lane, with or without TLS."""

    lane: str
    tls: bool

    def __str__(self) -> str:
        return f"{self.lane}-{'tls' if self.tls else 'tcp'}"


WAYS = [Way(lane, tls) for lane in ("fast", "plain") for tls in (False, True)]


class LiveClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.got = b""

    async def send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def answer(self, timeout_s: float = PATIENCE_S) -> HttpAnswer:
        """Return the next complete final answer."""
        return (await self.answers(timeout_s))[-1]

    async def answers(self, timeout_s: float = PATIENCE_S) -> list[HttpAnswer]:
        """Return the answers up to the first complete final one."""
        async with asyncio.timeout(timeout_s):
            while True:
                answers = read_answers(self.got) if self.got else []
                if answers and answers[-1].complete and answers[-1].status >= 200:
                    self.got = b""
                    return answers
                data = await self.reader.read(65536)
                assert data, f"the connection ended inside an answer: {self.got[:300]!r}"
                self.got += data

    async def until(self, needle: bytes, timeout_s: float = PATIENCE_S) -> bytes:
        async with asyncio.timeout(timeout_s):
            while needle not in self.got:
                data = await self.reader.read(65536)
                assert data, f"ended before {needle!r}: {self.got[-300:]!r}"
                self.got += data
        return self.got

    async def rest(self, timeout_s: float = PATIENCE_S) -> bytes:
        """Return all bytes up to the end of the connection."""
        async with asyncio.timeout(timeout_s):
            with contextlib.suppress(ConnectionError):
                while data := await self.reader.read(65536):
                    self.got += data
        return self.got

    def leave(self) -> float:
        self.writer.transport.abort()
        return time.monotonic()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await self.writer.wait_closed()


@contextlib.asynccontextmanager
async def client(live: LiveGateway, way: Way, trust: ssl.SSLContext) -> AsyncIterator[LiveClient]:
    port = live.tls_port if way.tls else live.plain_port
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=trust if way.tls else None, server_hostname="localhost" if way.tls else None
    )
    one = LiveClient(reader, writer)
    if way.lane == "plain":
        await one.send(get("/healthz"))
        assert (await one.answer()).status == 200
    try:
        yield one
    finally:
        writer.transport.abort()


async def quiet(live: LiveGateway, timeout_s: float = PATIENCE_S) -> bool:
    """Return True once the gateway holds no request, False on timeout."""
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        if live.open_requests() == 0:
            return True
        await asyncio.sleep(0.01)
    return False
