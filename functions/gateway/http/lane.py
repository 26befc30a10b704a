"""Fast lane to clients: one connection whose hot requests are served here; all others are handed to uvicorn.

uvicorn uses this class as its `http=` protocol. httptools parses. A POST to a hot route is collected, admitted and
connected to an engine without any ASGI call. The first request for anything else moves the connection to uvicorn's
own protocol, where it stays, also for hot routes (`plain.py` serves those).

    idle -> head -> body -> busy -> idle …          each phase has a deadline, which `check` enforces
                            busy -> flushing -> idle    the client has not read its answer yet
                            busy -> closing         after the last answer of a connection
    head | body -> linger -> closing                after an early rejection

A half-close counts as a disconnect: the engine's work is aborted immediately.
"""

import asyncio
from http import HTTPStatus
from typing import Any, cast

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from functions.api.ids import TenantId
from functions.gateway import errors
from functions.gateway.errors import ErrorAnswer, RequestRejected
from functions.gateway.gateway import Gateway
from functions.gateway.http.cors import names_origin
from functions.gateway.http.headers import RawHeaders, announced_bytes, request_id_of
from functions.gateway.http.held_bytes import FREE_BYTES, Hold
from functions.gateway.http.sink import Answering, Headers
from functions.gateway.intake.routes import HOT_ROUTES, Route
from functions.http.connections import Connection, address_of
from functions.http.guarded import GuardedHttp, head_without_upgrade

_HOT = {path.encode(): route for path, route in HOT_ROUTES.items()}
_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_header_line = b": ".join
_NEVER_S = float("inf")
_UNREAD_BYTES = 16 * 1024  # above this, reading from the engine pauses; uvloop's default is four times as much


class _NotHot(Exception):
    """Stops the parser: uvicorn serves this connection from here on."""


class LaneProtocol(asyncio.Protocol):
    __slots__ = (
        "_app_state", "_body", "_body_bytes", "_close_after", "_completed", "_config", "_exchange",
        "_expects_continue", "_gateway", "_head_bytes", "_headers", "_heeds_origins", "_loop", "_parser", "_phase",
        "_pipelined", "_raw", "_received_s", "_refused", "_route", "_services", "_state", "_tenant", "_transport",
        "_unread_bytes", "_upload", "_url", "_write_paused", "due_s", "stands_for",
    )  # fmt: skip

    def __init__(
        self,
        gateway: Gateway,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._gateway = gateway
        self._services = gateway.services
        self._heeds_origins = bool(gateway.services.origins)
        self._config = config
        self._state = server_state
        self._app_state = app_state
        self._loop = _loop
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)  # set in connection_made, before any use
        self._parser: Any = httptools.HttpRequestParser(self)  # None during a stream
        self._exchange: Answering | None = None
        self._raw: bytes | None = b""  # bytes of the current head, for a handover; None once it is a hot route's
        self._phase = "idle"
        self.due_s = gateway.services.clock() + gateway.services.limits.head_s
        self._close_after = self._refused = self._pipelined = self._completed = self._write_paused = False
        self._url = b""
        self._route: Route = cast(Route, None)  # set with the head, before any use
        self._headers: RawHeaders = []
        self._body: bytes | bytearray = b""  # not a list: a body of one-byte chunks would need fifty times its size
        self._head_bytes = 0
        self._received_s = 0.0
        self._unread_bytes = 0  # unread bytes of answers at the last check
        self._expects_continue = False
        self._upload: Hold | None = None  # memory reserved for a body that may be large, until an engine has it
        self._tenant: TenantId | None = None  # tenant of the key; None: not authenticated
        self.stands_for: Connection | None = None  # the handshake that was counted in its place

    # calls of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # A TLS handshake may have used up the first deadline
        self.due_s = self._services.clock() + self._services.limits.head_s
        self._transport.set_write_buffer_limits(high=_UNREAD_BYTES)
        if not self._is_counted():
            self._close_after, self._phase = True, "busy"
            answer = errors.unavailable(
                "The gateway's limit on connections is reached. Try again shortly.", "overloaded", 1
            )
            self._gateway.refuse(self, request_id_of([]), answer)
            return
        self._close_after = self._services.state.draining
        self._state.connections.add(self)  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        if self._refused or self._phase == "closing":
            return
        if self._parser is None:
            self._interrupted(data)
            return
        if self._raw is not None:
            self._raw += data
        if self._phase == "idle":
            self._phase, self.due_s = "head", self._services.clock() + self._services.limits.head_s
        self._completed = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._parser_stopped(error)
            return
        except httptools.HttpParserUpgrade as upgrade:
            self._without_upgrade(data[upgrade.args[0] :])
            return
        if self._phase == "head" and self._raw is not None and len(self._raw) > self._services.limits.head_bytes:
            self._refuse(self._head_too_large())

    def eof_received(self) -> bool:
        return False  # the transport closes: a half-close is a disconnect

    def connection_lost(self, exc: Exception | None) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_left()
        self._end_upload()
        self._services.held.remove_waiting(self)
        self._leave()

    def pause_writing(self) -> None:
        self._write_paused = True
        if self._exchange is not None:
            self._exchange.pause()
        elif self._phase == "idle":
            self._flush()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._exchange is not None:
            self._exchange.resume()
        elif self._phase == "flushing":
            self._services.held.remove_waiting(self)
            self._transport.resume_reading()
            self._next()

    # calls of uvicorn and the sweep

    def shutdown(self) -> None:
        """Close after the current request, or if idle within `lame_duck_s`, because the server drains."""
        self._close_after = True
        if self._phase == "idle":
            self.due_s = min(self.due_s, self._services.clock() + self._services.http.lame_duck_s)

    def check(self, now_s: float) -> None:
        if now_s < self.due_s:
            return
        if self._phase == "head":
            self._refuse(errors.request_timeout("The head"))
        elif self._phase == "body":
            self._refuse(errors.request_timeout("The body"))
        elif self._phase in ("closing", "flushing"):
            self._cut_unless_read(now_s)
        else:
            self._close()

    @property
    def idle_since_s(self) -> float | None:
        """Time by which connections are ordered for closing; None while an authenticated request is in progress."""
        if self._phase == "idle":
            limits = self._services.limits
            return self.due_s - (limits.keep_alive_s if self._tenant is not None else limits.head_s)
        return self.due_s if self._tenant is None and self._exchange is None else None

    def give_way(self) -> None:
        self._transport.abort()

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers in this process that wait to be sent to the client."""
        return self._transport.get_write_buffer_size()

    # calls of the parser

    def on_message_begin(self) -> None:
        self._pipelined = self._phase == "busy" or self._completed
        if self._pipelined:
            raise _NotHot
        self._url = b""
        self._headers = []
        self._body = b""
        self._head_bytes = 0
        self._expects_continue = False

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head_bytes += len(url)
        if self._head_bytes > self._services.limits.head_bytes:
            raise RequestRejected(self._head_too_large())

    def on_header(self, name: bytes, value: bytes) -> None:
        limits, headers = self._services.limits, self._headers
        if self._raw is not None:  # otherwise it is a trailer, which was not checked and is ignored
            headers.append((name, value))
        if len(headers) > limits.header_count:
            raise RequestRejected(errors.headers_too_large(f"The request has over {limits.header_count} headers."))
        self._head_bytes += len(name) + len(value) + 4  # includes colon, space and line end
        if self._head_bytes > limits.head_bytes:
            raise RequestRejected(self._head_too_large())
        if len(name) == 6 and name.lower() == b"expect":
            self._expects_continue = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        route = _HOT.get(self._url)
        if route is None or self._parser.get_method() != b"POST" or self._parser.get_http_version() != "1.1":
            raise _NotHot
        if self._heeds_origins and names_origin(self._headers):  # a browser's request: CORS headers are added by `asgi`
            raise _NotHot
        if self._parser.should_upgrade():  # the head is parsed again, without the upgrade
            return
        self._route = route
        self._raw = None
        self._received_s = now_s = self._services.clock()
        self._phase, self.due_s = "body", now_s + self._services.limits.body_s
        announced = announced_bytes(self._headers)
        if announced is None or announced > FREE_BYTES or self._expects_continue:
            self._upload = self._gateway.precheck(self._headers)
            self._known(self._upload.tenant)
        if self._expects_continue:
            self._transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        if not self._body:
            self._body = body  # most bodies arrive in one piece, which needs no copy
        elif type(self._body) is bytes:
            self._body = bytearray(self._body) + body
        else:
            self._body += body
        if len(self._body) > self._services.limits.body_bytes:
            raise RequestRejected(errors.body_too_large(self._services.limits.body_bytes))
        if self._upload is not None and len(self._body) > self._upload.bound_bytes:
            self._upload.reserve_up_to(len(self._body))

    def on_message_complete(self) -> None:
        if self._raw is not None:  # the parser also calls this for a head with an upgrade
            return
        if not self._parser.should_keep_alive():
            self._close_after = True
        self._completed = True
        self._phase, self.due_s = "busy", _NEVER_S  # the exchange has its own timeouts
        body = bytes(self._body)
        self._body = self._url = b""
        headers, self._headers = self._headers, []  # a long stream holds no data of its request
        exchange = self._gateway.handle(self._route, headers, body, self, self._received_s)
        del body  # the exchange holds what it needs of the body
        if exchange is None:
            return
        if self._tenant is not exchange.tenant:
            self._known(exchange.tenant)
        if not exchange.ended:
            self._exchange = exchange

    # calls of the exchange: the connection is its Sink

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        self._transport.write(self._head(status, headers, b"content-length: %d\r\n" % len(body)) + body)
        self._answered()

    def begin_stream(self, headers: Headers, first: bytes) -> None:
        self._parser = None  # frees 1.5 KiB; the next request gets a new parser
        if self._upload is not None:
            self._end_upload()
        head = self._head(200, headers, b"transfer-encoding: chunked\r\n")
        self._transport.write(b"%b%x\r\n%b\r\n" % (head, len(first), first))

    def more(self, data: bytes) -> None:
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self, last: bytes) -> None:
        self._transport.write(b"%x\r\n%b\r\n%b" % (len(last), last, _LAST_CHUNK) if last else _LAST_CHUNK)
        self._answered()

    def cut(self) -> None:
        self._transport.abort()

    # internals

    def _parser_stopped(self, error: Exception) -> None:
        cause = error.__context__
        if isinstance(cause, RequestRejected):
            self._refuse(cause.answer)
        elif isinstance(cause, _NotHot) and self._pipelined:
            self._close_after = self._refused = True  # answer the first request; the client must send later ones again
            if self._phase in ("idle", "flushing"):
                self._close()
        elif isinstance(cause, _NotHot):
            self._hand_over()
        else:
            self._refuse(ErrorAnswer(400, "invalid_request_error", "invalid_http", "This is not well-formed HTTP/1.1."))

    def _without_upgrade(self, rest: bytes) -> None:
        """Ignore an upgrade (RFC 9110, 7.8): parse the head again with a parser that does not see it."""
        head = head_without_upgrade(b"POST", self._url, "1.1", self._headers)
        self._parser, self._raw = httptools.HttpRequestParser(self), b""
        self.data_received(head + rest)

    def _interrupted(self, data: bytes) -> None:
        """Ignore data that arrives during an answer, and close after the answer unless it is only empty lines."""
        if data.strip(b"\r\n"):  # empty lines before a request are ignored
            self._close_after = self._refused = True

    def _hand_over(self) -> None:
        raw, self._raw = self._raw or b"", None
        self._state.connections.discard(self)
        protocol = GuardedHttp(
            self._services.http,
            config=self._config,
            server_state=self._state,
            app_state=self._app_state,
            _loop=self._loop,
        )
        protocol.stands_for = self
        protocol.connection_made(self._transport)
        self._transport.set_protocol(protocol)
        protocol.data_received(raw)
        if self._close_after:
            protocol.shutdown()

    def _refuse(self, answer: ErrorAnswer) -> None:
        """Send this error and close, because further bytes on this connection may not be a request.

        If an answer is under way, cut the connection without the error.
        """
        self._close_after = True
        self._end_upload()
        if self._phase == "busy":  # an answer has started; a second one would corrupt it
            self._transport.abort()
            return
        self._refused = True
        self._phase = "busy"
        self._gateway.refuse(self, request_id_of(self._headers), answer)

    def _end_upload(self) -> None:
        """Drop the request's body and release its memory: an engine has it, or none will get it."""
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.end()
        self._body = b""

    def _head(self, status: int, headers: Headers, framing: bytes) -> bytes:
        return b"%b%b\r\n%b%b" % (
            _STATUS_LINES.get(status, _STATUS_LINES[500]),
            b"\r\n".join(map(_header_line, headers)),  # no bytecode per header
            framing,
            b"connection: close\r\n\r\n" if self._close_after else b"\r\n",
        )

    def _answered(self) -> None:
        self._exchange = None
        if self._upload is not None:
            self._end_upload()
        if self._tenant is None:
            self._services.connections.mark_active(self)
        if self._refused:
            self._enter("linger", self._services.limits.linger_s)
        elif self._write_paused and not self._close_after:
            self._flush()
        else:
            self._next()

    def _flush(self) -> None:
        """Accept no further request until this answer is read, so that unread answers cannot accumulate."""
        self._transport.pause_reading()
        self._until_read("flushing")

    def _next(self) -> None:
        if self._close_after:
            self._close()
            return
        self._raw = b""
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
        self._enter("idle", self._services.limits.keep_alive_s)

    def _close(self) -> None:
        """Close after all written data has gone out. A client that reads too little is cut off."""
        self._until_read("closing")
        self._transport.close()

    def _until_read(self, phase: str) -> None:
        self._unread_bytes = self.unread_bytes
        if self._unread_bytes > FREE_BYTES and self._tenant is not None:
            self._services.held.add_waiting(self, self._tenant)
        self._enter(phase, self._services.limits.write_stall_s)

    def _cut_unless_read(self, now_s: float) -> None:
        """Cut the connection if too little was read since the last check, else extend its deadline."""
        left_bytes = self.unread_bytes
        if self._unread_bytes - left_bytes < self._services.limits.least_read_bytes:
            self._transport.abort()
            return
        self._unread_bytes = left_bytes
        self.due_s = now_s + self._services.limits.write_stall_s

    def _head_too_large(self) -> ErrorAnswer:
        return errors.headers_too_large(f"The head is over {self._services.limits.head_bytes} bytes.")

    def _enter(self, phase: str, within_s: float) -> None:
        """Set the connection's phase, which may last `within_s` seconds from now."""
        self._phase = phase
        self.due_s = self._services.clock() + within_s

    def _is_counted(self) -> bool:
        connections, handshake = self._services.connections, self.stands_for
        self.stands_for = None
        if handshake is not None and handshake in connections:
            connections.replace(handshake, self)
            return True
        return connections.add(self, address_of(self._transport.get_extra_info("peername")))

    def _known(self, tenant: TenantId) -> None:
        self._tenant = tenant
        self._services.connections.mark_known(self)

    def _leave(self) -> None:
        self._services.connections.discard(self)
        self._state.connections.discard(self)
