"""An exchange between a client and played engines, on a clock that only the test advances.

A scenario reads like a protocol trace:

    play = Play("r0", "r1")
    play.ask(stream=True)
    play.engine.dies()                        # before its first byte
    play.engine.streams(sse.token(...))       # `engine`: the one that got the last request
    assert play.client.got == [...]

The connections are real `UpstreamConnection`s in the real pool; only the transport under them is played.
"""

import asyncio
from collections import deque
from dataclasses import replace
from typing import Any

import orjson

from functions.api.ids import ReplicaId
from functions.gateway.http.sink import Headers
from functions.gateway.intake.routes import CHAT, COMPLETIONS, Route
from functions.gateway.limits import Limits
from functions.gateway.request.exchange import RequestExchange
from functions.gateway.request.upstream import UpstreamConnection, UpstreamPool
from functions.gateway.routing.load_client import Loader
from tests.gateway import sse
from tests.gateway.rig import Rig, headers

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


class PlayedTransport(asyncio.Transport):
    """A transport whose other end is the test; `written` holds what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closing = self.aborted = self.reading_paused = False

    def write(self, data: Any) -> None:
        assert not self.closing, "written to a connection that closes"
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = self.aborted = True

    def close(self) -> None:
        self.closing = True

    def pause_reading(self) -> None:
        assert not self.closing
        self.reading_paused = True

    def resume_reading(self) -> None:
        assert not self.closing
        self.reading_paused = False


class Engine:
    """One connection as the engine sees it."""

    def __init__(self, pool: UpstreamPool, replica_id: ReplicaId) -> None:
        self.replica_id = replica_id
        self.transport = PlayedTransport()
        self.connection = UpstreamConnection(pool, replica_id)
        self.connection.connection_made(self.transport)

    # requests received

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [
            orjson.loads(part[: part.rindex(b"}") + 1]) for part in bytes(self.transport.written).split(b"\r\n\r\n")[1:]
        ]

    @property
    def dropped(self) -> bool:
        return self.transport.aborted

    @property
    def paused(self) -> bool:
        return self.transport.reading_paused

    # actions of the engine

    def sends(self, data: bytes) -> None:
        if not self.transport.closing:
            self.connection.data_received(data)

    def begins_stream(self) -> None:
        self.sends(STREAM_HEAD)

    def streams(self, *events: bytes) -> None:
        for data in events:
            self.sends(b"%x\r\n%b\r\n" % (len(data), data))

    def ends_stream(self) -> None:
        self.sends(b"0\r\n\r\n")

    def answers(self, status: int, body: bytes, content_type: str = "application/json", extra: str = "") -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\n{extra}content-length: {len(body)}\r\n\r\n"
        self.sends(head.encode() + body)

    def refuses(self, status: int, message: str = "no") -> None:
        self.answers(status, sse.compact({"error": {"message": message, "type": "X", "param": None, "code": status}}))

    def dies(self) -> None:
        self.transport.closing = True
        self.connection.connection_lost(ConnectionResetError("reset"))


class PlayedPool(UpstreamPool):
    """The real pool, except that a dial waits until the test completes it or makes it fail."""

    def __init__(self, play: "Play") -> None:
        limits = play.rig.limits
        super().__init__(play.rig.clock, limits.idle_upstreams_per_replica, limits.upstream_keep_alive_s)
        self._play = play

    async def dial(self, replica_id: ReplicaId, host: str, port: int, timeout_s: float) -> UpstreamConnection:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._play.dials.append((replica_id, answer))
        await answer
        engine = Engine(self, replica_id)
        engine.transport.closing = self._play.born_dying
        self._play.engines.append(engine)
        return engine.connection


class Client:
    """A sink that records what it gets and checks that the exchange follows the sink's rules."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.ended = self.was_cut = False

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        self._begins(status, headers)
        self.body, self.ended = body, True

    def begin_stream(self, headers: Headers, first: bytes) -> None:
        self._begins(200, headers)
        assert first
        self.body = first

    def more(self, data: bytes) -> None:
        assert self.status is not None and not self.ended and data
        self.body += data

    def end(self, last: bytes) -> None:
        assert self.status is not None and not self.ended
        self.body += last
        self.ended = True

    def cut(self) -> None:
        self.was_cut = True

    def _begins(self, status: int, headers: Headers) -> None:
        assert self.status is None and not self.ended, "a second answer"
        self.status, self.headers = status, dict(headers)

    @property
    def error(self) -> dict[str, Any]:
        """Return the error of a whole answer or of the last event."""
        last = self.body if self.status != 200 else self.body.split(b"\n\n")[-2].removeprefix(b"data: ")
        error: dict[str, Any] = orjson.loads(last)["error"]
        assert sorted(error) == ["code", "message", "param", "type"]
        return error


class Play:
    def __init__(
        self, *replicas: str, limits: Limits | None = None, loader: Loader | None = None, **policies: Any
    ) -> None:
        # No quarantine unless the scenario is about it: every client here says "hi", and replicas fail all the time.
        limits = limits or Limits(quarantine_after_replicas=0)
        self.rig = Rig(limits=limits, policies=policies, loader=loader).with_replicas(*replicas)
        gateway = self.gateway = self.rig.gateway
        self.dials: deque[tuple[ReplicaId, asyncio.Future[None]]] = deque()
        self.engines: list[Engine] = []
        gateway.services = replace(gateway.services, upstreams=PlayedPool(self))
        self.client = Client()
        self.exchange: RequestExchange | None = None
        self.born_dying = False  # connections break between the handshake and their first use

    def ask(self, model: str = "acme/bot", stream: bool = True, route: Route = CHAT, **fields: Any) -> RequestExchange:
        """Send a new client's request and run it until the exchange waits."""
        content = {"prompt": "hi"} if route is COMPLETIONS else {"messages": [{"role": "user", "content": "hi"}]}
        more = {name.removeprefix("header_"): fields.pop(name) for name in list(fields) if name.startswith("header_")}
        body = sse.compact({"model": model, "stream": stream, **content, **fields})
        self.client = Client()
        exchange = self.gateway.handle(route, headers(**more), body, self.client, self.rig.clock())
        assert isinstance(exchange, RequestExchange), self.client.body
        self.exchange = exchange
        return exchange

    async def settle(self) -> None:
        """Let pending dials start and their results be processed."""
        for _ in range(5):
            await asyncio.sleep(0)

    async def connects(self) -> Engine:
        """Let the dial under way succeed and return its engine, which has received the request."""
        await self.settle()
        _, answer = self.dials.popleft()
        answer.set_result(None)
        await self.settle()
        return self.engines[-1]

    async def refuses_connection(self, error: Exception | None = None) -> ReplicaId:
        await self.settle()
        replica_id, answer = self.dials.popleft()
        answer.set_exception(error or ConnectionRefusedError("refused"))
        await self.settle()
        return replica_id

    @property
    def engine(self) -> Engine:
        return self.engines[-1]

    def after(self, seconds: float) -> None:
        """Advance the clock and check each open request."""
        self.rig.clock.forward(seconds)
        for exchange in list(self.gateway.services.open_requests):
            exchange.check(self.rig.clock())

    def quiet(self) -> bool:
        """Return True if no request has left anything behind."""
        return self.gateway.services.router.load.in_flight == {} and len(self.gateway.services.open_requests) == 0

    def requests(self, code: int, model: str = "acme/bot") -> float:
        """Return the number of requests that the metrics count with this status."""
        labels = {"model": model, "class": "interactive", "code": str(code)}
        return self.gateway.services.metrics.registry.get_sample_value("shoal_requests_total", labels) or 0.0

    async def close(self) -> None:
        await self.gateway.services.tasks.close()
