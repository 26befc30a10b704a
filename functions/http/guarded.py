"""HTTP/1.1 protocol of every server here: uvicorn's protocol plus timeouts and limits that it lacks.

Limits: arrival time of head and body, size of the head, the rate at which the client reads, and the time to close.
Without them half a header or an unread answer holds a connection forever, and an endless header fills the memory.
Handlers that read bodies limit them; this protocol limits bodies that no handler reads.

    GuardedHttp     uvicorn's `http=`, by `functools.partial(GuardedHttp, guard)`
    authenticated   called by the code that has checked a request's credential

An upgrade is ignored (RFC 9110, 7.8): the request is answered as HTTP/1.1. An HTTP/1.0 client gets its answer without
chunks, ended by closing the connection. `guard` has the limits; `connections` decides which connections stay open;
`listening` has the sockets.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from functions.http.connections import Connection, address_of
from functions.http.guard import INVALID_HTTP, TOO_SLOW, TURNED_AWAY, Guard, Headers, Refusal, whole_answer

_NEVER_S = float("inf")
_KEY = "shoal.client"


def authenticated(scope: Mapping[str, Any], who: str | None = None) -> None:
    """Record that the request of this ASGI scope has a valid credential of `who`. Its connection then stays longer."""
    client = client_of(scope)
    if client is not None:
        client.authenticated(who)


def client_of(scope: Mapping[str, Any]) -> "GuardedHttp | None":
    """Return the connection that carried the request of an ASGI scope; None if the scope has no real connection."""
    return cast("GuardedHttp | None", scope.get("extensions", {}).get(_KEY))


def head_without_upgrade(method: bytes, url: bytes, version: str, headers: Headers) -> bytes:
    """Return the head without its upgrade header, for another parser. llhttp treats everything after a head with an
    upgrade as another protocol's bytes. That includes a body, which would then be parsed as a request."""
    lines = [b"%b %b HTTP/%b\r\n" % (method, url, version.encode())]
    lines += [b"%b: %b\r\n" % header for header in headers if header[0].lower() != b"upgrade"]
    return b"".join(lines) + b"\r\n"


class _Refused(Exception):
    """Raised to stop the parser, which makes uvicorn call `send_400_response`."""


class _UpToTheEnd(int):
    """Content length of a body that ends with its connection: no size exceeds it or falls short of it."""

    def __lt__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return False

    def __sub__(self, other: int) -> "_UpToTheEnd":
        return self


class GuardedHttp(HttpToolsProtocol):
    due_s = 0.0  # checked at every sweep: a transport does not report that it closes
    # object that was counted before this one existed: its handshake, or another protocol object
    stands_for: Connection | None = None

    def __init__(
        self,
        guard: Guard,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config=config, server_state=server_state, app_state=app_state, _loop=_loop)
        self._guard = guard
        self._deadline_s = _NEVER_S  # for the head or body that is arriving
        self._idle_until_s = _NEVER_S  # uvicorn's own timer ends with any byte, even an empty line
        self._read_by_s = _NEVER_S  # set when the client has stopped reading or the connection closes
        self._unread_bytes = 0  # at the last check
        self._head_bytes = 0  # as the parser reports it
        self._arrived_bytes = 0  # bytes read since the head began, including those that the parser has not reported yet
        self._body_bytes = 0
        self._has_spoken = self._in_head = self._is_upgrade = self._draining = False
        self._refusal: Refusal | None = None
        self._who: str | None = None  # identity of the last valid credential
        self._since_s = 0.0  # time when a request last began or ended

    # Transport callbacks.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        guard = self._guard
        super().connection_made(cast(asyncio.Transport, transport))
        self._since_s = guard.clock()
        self._deadline_s = self._since_s + guard.bounds.head_s
        if not self._is_counted():
            self._refuse(TURNED_AWAY)
            return
        guard.watch(self.loop)

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard.connections.discard(self)
        self._remove_waiting_reader()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self._has_spoken = True
        self._arrived_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("")
            return
        if self._in_head and self._arrived_bytes > self._guard.bounds.head_bytes:
            self._refuse(self._head_too_large())

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read_by_s = _NEVER_S
        self._remove_waiting_reader()

    # Methods that the sweep, uvicorn and `connections` call.

    def check(self, now_s: float) -> None:
        if self.transport.is_closing() and self._read_by_s == _NEVER_S:
            self._expect_reader()
        if now_s > self._read_by_s:
            self._cut_unless_read()
        elif now_s >= self._idle_until_s:
            self._end_quietly()
        elif now_s >= self._deadline_s and not self._answers_an_earlier_request():
            if self._has_spoken:
                self._refuse(TOO_SLOW)
            else:  # no data received: a probe of the port, or a browser's spare connection
                self._end_quietly()

    def shutdown(self) -> None:
        """Drain: finish the request under way, and still answer a request that is on its way. An idle connection is
        closed, after `lame_duck_s` if that is set."""
        self._draining = True
        cycle = cast(RequestResponseCycle | None, self.cycle)
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
        elif self._guard.lame_duck_s and not self._in_head:
            self._idle_until_s = min(self._idle_until_s, self._guard.clock() + self._guard.lame_duck_s)
        elif not self._in_head:
            self.transport.close()

    @property
    def idle_since_s(self) -> float | None:
        cycle = cast(RequestResponseCycle | None, self.cycle)
        return self._since_s if cycle is None or cycle.response_complete else None

    def give_way(self) -> None:
        self.transport.abort()

    def authenticated(self, who: str | None) -> None:
        """Mark the connection as known and remember the identity `who`."""
        self._who = who
        self._guard.connections.mark_known(self)

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that the client has not read yet."""
        return int(self.transport.get_write_buffer_size())

    # Parser callbacks.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = cast(Any, {_KEY: self})
        self._in_head, self._head_bytes, self._arrived_bytes, self._body_bytes = True, 0, 0, 0
        self._since_s = self._guard.clock()
        self._guard.connections.mark_active(self)
        self._idle_until_s = _NEVER_S
        self._deadline_s = self._since_s + self._guard.bounds.head_s

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + len(b": \r\n"))
        if self._in_head:  # uvicorn would treat a trailer as a header
            super().on_header(name, value)
            if len(self.headers) > self._guard.bounds.header_count:
                self._stop(self._too_many_headers())

    def on_headers_complete(self) -> None:
        bounds = self._guard.bounds
        if len(self.pipeline) >= bounds.pipelined or self.parser.get_method() == b"CONNECT":
            self._stop(INVALID_HTTP)
        self._is_upgrade = self.parser.should_upgrade()
        if self._is_upgrade:
            return  # fed again without the upgrade header
        super().on_headers_complete()
        self._in_head = False
        is_upload = self.url.partition(b"?")[0] in bounds.uploads
        self._deadline_s = self._guard.clock() + (bounds.upload_s if is_upload else bounds.body_s)
        cycle = self.cycle
        if self.parser.get_http_version() == "1.0":
            cycle.chunked_encoding, cycle.expected_content_length = False, _UpToTheEnd()
        if self._draining:
            cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        most_bytes = self._guard.bounds.body_bytes
        if most_bytes is not None and self._body_bytes > most_bytes:
            self._stop(Refusal(413, "body_too_large", f"The body is over {most_bytes} bytes."))
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_upgrade:
            return
        self._deadline_s = _NEVER_S  # from here on the handler's own timeouts apply
        super().on_message_complete()
        if self.cycle.response_complete:  # answered before its body was complete
            self._start_keep_alive()

    # Methods that uvicorn calls.

    def on_response_complete(self) -> None:
        if self._deadline_s != _NEVER_S:  # a pipelined request, which was not read while this answer was being sent
            self._deadline_s = self._guard.clock() + self._guard.bounds.body_s
        else:
            self._start_keep_alive()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Do nothing: the sweep closes idle connections, after data that has already arrived was read."""

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser rejected, in the listener's own error format, and close the connection; `msg` is
        ignored."""
        self._refuse(self._refusal or INVALID_HTTP)

    # Helpers.

    def _is_counted(self) -> bool:
        connections, before = self._guard.connections, self.stands_for
        self.stands_for = None
        if before is not None and before in connections:
            connections.replace(before, self)
            return True
        return connections.add(self, address_of(self.transport.get_extra_info("peername")))

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            method, version = self.parser.get_method(), self.parser.get_http_version()
            head = head_without_upgrade(method, self.url, version, self.headers)
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            self._feed(head + data[upgrade.args[0] :])

    def _start_keep_alive(self) -> None:
        """Start the idle timeout, because no request is under way, and mark the connection as active."""
        guard = self._guard
        self._since_s = guard.clock()
        guard.connections.mark_active(self)
        rests_s = guard.lame_duck_s if self._draining else guard.bounds.keep_alive_s
        self._idle_until_s = self._since_s + rests_s

    def _count_head(self, added_bytes: int) -> None:
        self._head_bytes += added_bytes
        if self._head_bytes > self._guard.bounds.head_bytes:
            self._stop(self._head_too_large())

    def _stop(self, refusal: Refusal) -> None:
        self._refusal = refusal
        raise _Refused

    def _head_too_large(self) -> Refusal:
        return Refusal(431, "headers_too_large", f"The head is over {self._guard.bounds.head_bytes} bytes.")

    def _too_many_headers(self) -> Refusal:
        count = self._guard.bounds.header_count
        return Refusal(431, "headers_too_large", f"The request has over {count} headers.")

    def _refuse(self, refusal: Refusal) -> None:
        """Close the connection, and send `refusal` first if it is this request's turn to be answered."""
        self._deadline_s = self._idle_until_s = _NEVER_S
        if self._may_answer():
            self.transport.write(whole_answer(refusal, *self._guard.refusal(refusal)))
            self._guard.on_refused(refusal.status)
        self._in_head = False
        self.transport.close()

    def _end_quietly(self) -> None:
        self._deadline_s = self._idle_until_s = _NEVER_S
        self.transport.close()

    def _may_answer(self) -> bool:
        """Return True if an answer may be sent now. A second answer to one request, or one inside another, would be
        read as the answer to a different request."""
        cycle = cast(RequestResponseCycle | None, self.cycle)
        if cycle is None:
            return True
        if cycle.response_complete:
            return self._in_head  # answers the next request; a late body belongs to a request that was already answered
        return not (cycle.response_started or self._in_head or self.pipeline)

    def _answers_an_earlier_request(self) -> bool:
        cycle = cast(RequestResponseCycle | None, self.cycle)
        if cycle is None or cycle.response_complete:
            return False
        return self._in_head or bool(self.pipeline)

    def _expect_reader(self) -> None:
        readers = self._guard.readers
        if readers is not None and self._who is not None:
            readers.add_waiting(self, self._who)
        self._unread_bytes = self.unread_bytes
        self._read_by_s = self._guard.clock() + self._guard.bounds.write_stall_s

    def _remove_waiting_reader(self) -> None:
        if self._guard.readers is not None:
            self._guard.readers.remove_waiting(self)

    def _cut_unless_read(self) -> None:
        """Abort if the client has read too little since the last check; else start the next interval."""
        if self._unread_bytes - self.unread_bytes < self._guard.bounds.least_read_bytes:
            self.transport.abort()
        else:
            self._expect_reader()
