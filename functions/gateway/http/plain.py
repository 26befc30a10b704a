"""The engine routes as plain ASGI, for connections that cannot use the fast lane.

Intake and exchange are those of the lane; only the client side differs. ASGI hides three things that the lane sees
directly, so this module watches for them: a client that left (only `receive` reports it, `send` does not), a client
that does not read (`send` blocks forever), and a body that does not arrive.
"""

import asyncio
from collections import deque
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from functions.fleet import own_stalls
from functions.gateway import errors
from functions.gateway.errors import RequestRejected
from functions.gateway.gateway import Gateway
from functions.gateway.http.headers import request_id_of
from functions.gateway.http.held_bytes import Hold
from functions.gateway.http.sink import Answering, Headers
from functions.gateway.intake.routes import Route
from functions.gateway.limits import Limits
from functions.http.guarded import authenticated

_PAUSE_ABOVE_BYTES = 64 * 1024


class ClientLeft(Exception):
    """The client closed its connection before its request was complete."""


class PlainEndpoint:
    """One engine route as an ASGI application."""

    def __init__(self, gateway: Gateway, route: Route) -> None:
        self._gateway = gateway
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = self._gateway
        limits, received_s = gateway.services.limits, gateway.services.clock()
        headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        sink = PlainSink()
        exchange: Answering | None = None
        try:
            sink.body = gateway.precheck(headers)
            authenticated(scope, sink.body.tenant)
            body = await _read_body(receive, limits, sink.body)
            exchange = gateway.handle(self._route, headers, body, sink, received_s)
            del body  # the exchange holds what it needs of the body
        except RequestRejected as refused:
            gateway.refuse(sink, request_id_of(headers), refused.answer, dialect=self._route.dialect)
        except ClientLeft:
            sink.let_go_of_body()
            return
        try:
            await _answer(sink, exchange, receive, send, limits)
        finally:
            sink.let_go_of_body()


class PlainSink:
    """Queue of ASGI messages that pauses the exchange when it grows too large."""

    def __init__(self) -> None:
        self.exchange: Answering | None = None
        self.body: Hold | None = None  # memory of the request's body, until an engine has it
        self._messages: deque[Message] = deque()
        self._queued_bytes = 0
        self._paused = self._closed = False
        self._changed = asyncio.Event()

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        length = (b"content-length", b"%d" % len(body))
        self._put({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        self._put({"type": "http.response.body", "body": body, "more_body": False})

    def let_go_of_body(self) -> None:
        if self.body is not None:
            self.body.end()

    def begin_stream(self, headers: Headers, first: bytes) -> None:
        self.let_go_of_body()
        self._put({"type": "http.response.start", "status": 200, "headers": headers})
        self.more(first)

    def more(self, data: bytes) -> None:
        self._queued_bytes += len(data)
        self._put({"type": "http.response.body", "body": data, "more_body": True})
        if self._queued_bytes > _PAUSE_ABOVE_BYTES and not self._paused and self.exchange is not None:
            self._paused = True
            self.exchange.pause()

    def end(self, last: bytes) -> None:
        self._put({"type": "http.response.body", "body": last, "more_body": False})

    def cut(self) -> None:
        self._closed = True
        self._changed.set()

    async def next(self) -> Message | None:
        """Wait for the next ASGI message and return it, or None once the sink was cut; resume a paused exchange."""
        while not self._messages and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        if self._closed:
            return None
        message = self._messages.popleft()
        self._queued_bytes -= len(message.get("body", b"")) if message.get("more_body") else 0
        if self._paused and self._queued_bytes <= _PAUSE_ABOVE_BYTES // 2 and self.exchange is not None:
            self._paused = False
            self.exchange.resume()
        return message

    def _put(self, message: dict[str, Any]) -> None:
        self._messages.append(message)
        self._changed.set()


async def _read_body(receive: Receive, limits: Limits, upload: Hold) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    try:
        async with own_stalls.timeout(limits.body_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeft
                part = message.get("body", b"")
                size_bytes += len(part)
                if size_bytes > limits.body_bytes:
                    raise RequestRejected(errors.body_too_large(limits.body_bytes))
                if size_bytes > upload.bound_bytes:
                    upload.reserve_up_to(size_bytes)
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError as error:
        raise RequestRejected(errors.request_timeout("The body")) from error


async def _answer(sink: PlainSink, exchange: Answering | None, receive: Receive, send: Send, limits: Limits) -> None:
    sink.exchange = exchange
    async with asyncio.TaskGroup() as group:
        watcher = group.create_task(_watch(receive, sink))
        try:
            await _pump(sink, send, limits)
        finally:
            watcher.cancel()
            if exchange is not None:
                exchange.client_left()  # does nothing if the exchange has ended


async def _pump(sink: PlainSink, send: Send, limits: Limits) -> None:
    while (message := await sink.next()) is not None:
        try:
            async with own_stalls.timeout(limits.write_stall_s):
                await send(message)
        except TimeoutError:
            return  # returning with an unfinished answer makes the server drop the connection
        if message["type"] == "http.response.body" and not message["more_body"]:
            return


async def _watch(receive: Receive, sink: PlainSink) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    sink.cut()
