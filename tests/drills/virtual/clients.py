"""Clients of the fleet with realistic behavior: they stream or wait, keep sessions, read slowly, and leave.

All actions of a client are drawn before it starts, so that events do not change what it will do. A strict HTTP parser
reads what it receives, and each request yields one `Outcome`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import httptools
import orjson

from tests.drills.virtual.loop import Node, VirtualLoop
from tests.drills.virtual.pipes import Network, PipeTransport
from tests.drills.virtual.platform import KEYS, MAX_WAIT_S, MODELS

GATEWAY_PORT = 8443
PATIENCE_S = 60.0  # twice as long as the gateway's longest answer
_WORDS = (
    *("tide", "reef", "kelp", "brine", "swell", "gull", "drift", "shoal"),
    *("fin", "scale", "eddy", "spray", "coral", "naïve", "façade", "海", "🐟"),
)
Ending = Literal["answered", "refused", "streamed", "broken", "left", "cut", "unconnected", "unanswered"]


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """One planned request."""

    request_id: str
    tenant: str
    model: str
    heard: str  # the last user message, which the engine echoes
    service_class: str
    stream: bool
    include_usage: bool
    max_tokens: int
    deadline_ms: int | None
    think_s: float
    leaves_after_s: float | None
    leaves_after_events: int | None
    reads_late_s: float
    uploads_slowly: bool


@dataclass(slots=True)
class Outcome:
    plan: RequestPlan
    session: str | None
    gateway: Any  # the GatewayNode that received it; None: none was available
    ending: Ending = "unanswered"
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    began_s: float = 0.0  # when it was sent
    first_s: float | None = None  # the first byte of the answer
    ended_s: float = 0.0
    broken_by: str = ""  # a fault of the connection, which excuses a cut
    problem: str = ""  # with the form of the answer


def draw_plans(seed: str, client: int, rng: Random) -> tuple[str | None, list[RequestPlan]]:
    """Draw a client's session, if it has one, and all its requests."""
    tenant = rng.choice(list(KEYS))
    session = f"s{client}" if rng.random() < 0.6 else None
    count = rng.choice((1, 2, 3, 5)) if session is not None else rng.choice((1, 1, 2))
    model = rng.choice(MODELS[tenant])
    return session, [_draw_plan(f"c{client}-{number}", tenant, model, rng) for number in range(count)]


def _draw_plan(request_id: str, tenant: str, model: str, rng: Random) -> RequestPlan:
    stream = rng.random() < 0.7
    words = " ".join(rng.choice(_WORDS) for _ in range(rng.choice((3, 10, 40, 150))))
    return RequestPlan(
        request_id=request_id,
        tenant=tenant,
        model=model,
        heard=f"{request_id} {words}",
        service_class=rng.choices(list(MAX_WAIT_S), (6, 2, 2))[0],
        stream=stream,
        include_usage=rng.random() < 0.5,
        max_tokens=rng.choice((1, 8, 64, 800, 800)),
        deadline_ms=rng.choice((300, 2_000, 10_000)) if rng.random() < 0.15 else None,
        think_s=rng.uniform(0.0, 4.0),
        leaves_after_s=rng.uniform(0.0, 3.0) if rng.random() < 0.15 else None,
        leaves_after_events=rng.randint(1, 6) if stream and rng.random() < 0.1 else None,
        reads_late_s=rng.choice((1.0, 4.0, 9.0)) if rng.random() < 0.08 else 0.0,
        uploads_slowly=rng.random() < 0.08,
    )


def body_of(plan: RequestPlan) -> bytes:
    body: dict[str, Any] = {
        "model": plan.model,
        "messages": [{"role": "user", "content": plan.heard}],
        "max_tokens": plan.max_tokens,
        "stream": plan.stream,
    }
    if plan.stream and plan.include_usage:
        body["stream_options"] = {"include_usage": True}
    return orjson.dumps(body)


def request_of(plan: RequestPlan, session: str | None) -> bytes:
    body = body_of(plan)
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "host: shoal.test",
        f"authorization: Bearer {KEYS[plan.tenant]}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        f"x-request-id: {plan.request_id}",
        f"x-shoal-class: {plan.service_class}",
    ]
    lines += [f"x-session-id: {session}"] if session is not None else []
    lines += [f"x-shoal-deadline-ms: {plan.deadline_ms}"] if plan.deadline_ms is not None else []
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Connection(asyncio.Protocol):
    """Client side of a connection."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.transport: PipeTransport = None  # type: ignore[assignment]
        self.changed = asyncio.Event()
        self.is_over = False
        self.problem = ""
        self.first_s: float | None = None
        self._reset_answer()

    def _reset_answer(self) -> None:
        self.status, self.body = 0, b""
        self.headers: dict[str, str] = {}
        self.head_seen = self.is_complete = False

    def await_answer(self) -> None:
        self._reset_answer()
        self.first_s = None
        self._parser = httptools.HttpResponseParser(self)

    # called by the transport

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.first_s is None:
            self.first_s = self._loop.time()
        if self.is_complete or not hasattr(self, "_parser"):
            self.problem = self.problem or f"bytes after the end of an answer: {data[:60]!r}"
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.problem = self.problem or f"not HTTP: {error} in {data[:60]!r}"
        self.changed.set()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        self.changed.set()

    def pause_writing(self) -> None:
        """Ignore it: a request is smaller than any buffer."""

    def resume_writing(self) -> None:
        """Ignore it, like `pause_writing`."""

    # called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.decode().lower()
        if key in self.headers:
            self.problem = self.problem or f"the header {key} comes twice"
        self.headers[key] = value.decode()

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.head_seen = True

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = True


class Client:
    """A client; `run` is its whole life."""

    def __init__(
        self, seed: str, number: int, network: Network, pick: Callable[[int], Any], done: Callable[[Outcome], None]
    ) -> None:
        """`pick` returns the gateway for a client number; `done` receives each outcome."""
        rng = Random(f"{seed}/client/{number}")
        self._rng, self._number = rng, number
        self._network, self._loop = network, network.loop
        self._pick, self._done = pick, done
        self.node = Node(f"c{number}")
        self.session, self.plans = draw_plans(seed, number, rng)
        self._is_plain = rng.random() < 0.2  # its connection does not use the fast lane
        self._keeps_connection = rng.random() < 0.7
        self._stays = rng.random() < 0.7  # with one gateway
        self._connection: Connection | None = None
        self._gateway: Any = None

    async def run(self) -> None:
        for turn, plan in enumerate(self.plans):
            await asyncio.sleep(plan.think_s)
            outcome = await self._send_and_follow(plan, turn)
            outcome.ended_s = self._loop.time()
            self._done(outcome)
            if outcome.ending in ("left", "cut") or not self._keeps_connection:
                self._leave()
        self._leave()

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_over:
            connection.transport.abort() if self._rng.random() < 0.5 else connection.transport.close()

    async def _send_and_follow(self, plan: RequestPlan, turn: int) -> Outcome:
        try:
            connection = await self._connected(turn)
        except OSError:
            connection = None
        outcome = Outcome(plan, self.session, self._gateway, began_s=self._loop.time())
        if connection is None:
            outcome.ending = "unconnected"
            return outcome
        connection.await_answer()
        connection.transport.peer.answers = plan.request_id
        await self._send(connection, request_of(plan, self.session), plan)
        await self._follow(connection, plan, outcome)
        return self._judge(connection, outcome)

    async def _connected(self, turn: int) -> Connection | None:
        if (
            self._connection is not None
            and not self._connection.is_over
            and not self._connection.transport.is_closing()
        ):
            return self._connection
        self._gateway = self._pick(self._number if self._stays else self._number + turn)
        if self._gateway is None:
            return None
        async with asyncio.timeout(5.0):
            _, connection = await self._network.connect(
                self.node, lambda: Connection(self._loop), self._gateway.name, GATEWAY_PORT
            )
        self._connection = connection
        if self._is_plain:
            connection.await_answer()
            connection.transport.write(b"GET /healthz HTTP/1.1\r\nhost: shoal.test\r\n\r\n")
            await self._until(connection, lambda: connection.is_complete, 5.0)
        return None if connection.is_over else connection

    async def _send(self, connection: Connection, request: bytes, plan: RequestPlan) -> None:
        if not plan.uploads_slowly:
            connection.transport.write(request)
            return
        middle = self._rng.randrange(1, len(request))
        connection.transport.write(request[:middle])
        await asyncio.sleep(self._rng.choice((0.5, 3.0, 7.0)))
        connection.transport.write(request[middle:])

    async def _follow(self, connection: Connection, plan: RequestPlan, outcome: Outcome) -> None:
        end_s = self._loop.time() + (plan.leaves_after_s if plan.leaves_after_s is not None else PATIENCE_S)
        if plan.reads_late_s:
            await self._until(connection, lambda: connection.first_s is not None, end_s - self._loop.time())
            connection.transport.pause_reading()
            await asyncio.sleep(plan.reads_late_s)
            connection.transport.resume_reading()
        enough = plan.leaves_after_events
        await self._until(
            connection,
            lambda: connection.is_complete or (enough is not None and connection.body.count(b"\n\n") >= enough),
            end_s - self._loop.time(),
        )
        leaves = plan.leaves_after_s is not None or enough is not None
        if leaves and not connection.is_complete and not connection.is_over:
            outcome.ending = "left"

    async def _until(self, connection: Connection, is_enough: Callable[[], bool], timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not is_enough() and not connection.is_over:
                    connection.changed.clear()
                    await connection.changed.wait()
        except TimeoutError:
            return

    def _judge(self, connection: Connection, outcome: Outcome) -> Outcome:
        outcome.status, outcome.headers, outcome.body = connection.status, connection.headers, connection.body
        outcome.first_s, outcome.problem = connection.first_s, connection.problem
        outcome.broken_by = connection.transport.broken_by
        if outcome.ending == "left":
            return outcome
        if not connection.is_complete:
            outcome.ending = "cut" if connection.is_over else "unanswered"
        elif connection.status != 200:
            outcome.ending = "refused"
        elif not outcome.plan.stream:
            outcome.ending = "answered"
        else:
            outcome.ending = "streamed" if b"data: [DONE]" in connection.body else "broken"
        return outcome
