"""HTTP/1.1 protocol of every server of ours: uvicorn's, with the clocks and bounds that it lacks.

A head and a body must arrive in time, a head may weigh so much, a client must read what it is sent, and a connection
that closes must come to its end: without these half a header or an unread answer holds a connection for ever, and a
header without an end all of the memory. What is read of a body is bounded where it is read; here, where nobody reads.

    GuardedHttp     uvicorn's `http=`, by `functools.partial(GuardedHttp, guard)`
    authenticated   told by whoever has judged a request's credential

An upgrade is ignored (RFC 9110, 7.8): the request is answered as HTTP/1.1. A client of HTTP/1.0 is answered without
chunks, up to the connection's end. `guard` has the bounds; `connections` decides who may be connected; `listening` has
the sockets.
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
    """The request of this ASGI scope has shown a valid credential, `who`'s; what its connection is worth follows."""
    client = client_of(scope)
    if client is not None:
        client.authenticated(who)


def client_of(scope: Mapping[str, Any]) -> "GuardedHttp | None":
    """The connection that the request of an ASGI scope came on; None where it is played."""
    return cast("GuardedHttp | None", scope.get("extensions", {}).get(_KEY))


def head_without_upgrade(method: bytes, url: bytes, version: str, headers: Headers) -> bytes:
    """The same head, for another parser: llhttp takes what follows a head with an upgrade for another protocol's bytes,
    a body included, which would then be parsed as a request.
    """
    lines = [b"%b %b HTTP/%b\r\n" % (method, url, version.encode())]
    lines += [b"%b: %b\r\n" % header for header in headers if header[0].lower() != b"upgrade"]
    return b"".join(lines) + b"\r\n"


class _Refused(Exception):
    """Stops the parser, which makes uvicorn call `send_400_response`."""


class _UpToTheEnd(int):
    """The length of a body that ends with its connection: never passed, never missed."""

    def __lt__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return False

    def __sub__(self, other: int) -> "_UpToTheEnd":
        return self


class GuardedHttp(HttpToolsProtocol):
    due_s = 0.0  # at every sweep: a transport does not report that it closes
    stands_for: Connection | None = None  # what was counted before this could be: its handshake, or another lane

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
        self._deadline_s = _NEVER_S  # of the head or the body that is arriving
        self._idle_until_s = _NEVER_S  # uvicorn's own timer ends with any byte, an empty line included
        self._read_by_s = _NEVER_S  # the client has stopped reading, or the connection closes
        self._unread_bytes = 0  # when it was last looked
        self._head_bytes = 0  # as the parser reports it
        self._arrived_bytes = 0  # read since the head began, for what the parser does not report yet
        self._body_bytes = 0
        self._has_spoken = self._in_head = self._is_upgrade = self._draining = False
        self._refusal: Refusal | None = None
        self._who: str | None = None  # whose credential it showed last
        self._since_s = 0.0  # it last began or ended a request

    # what the transport calls

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
        self._nobody_waits()
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
        self._nobody_waits()

    # what the sweep, uvicorn and the listener's connections call

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
            else:  # it has said nothing: a probe of the port, a browser's spare connection
                self._end_quietly()

    def shutdown(self) -> None:
        """The server drains. What is under way is finished; a request that is on its way is answered, too."""
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
        """A request of it has shown a valid credential, `who`'s."""
        self._who = who
        self._guard.connections.known(self)

    @property
    def unread_bytes(self) -> int:
        """Of answers, that wait for the client."""
        return int(self.transport.get_write_buffer_size())

    # what the parser calls

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = cast(Any, {_KEY: self})
        self._in_head, self._head_bytes, self._arrived_bytes, self._body_bytes = True, 0, 0, 0
        self._since_s = self._guard.clock()
        self._guard.connections.spoke(self)
        self._idle_until_s = _NEVER_S
        self._deadline_s = self._since_s + self._guard.bounds.head_s

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + len(b": \r\n"))
        if self._in_head:  # uvicorn would take a trailer for a header
            super().on_header(name, value)
            if len(self.headers) > self._guard.bounds.header_count:
                self._stop(self._too_many_headers())

    def on_headers_complete(self) -> None:
        bounds = self._guard.bounds
        if len(self.pipeline) >= bounds.pipelined or self.parser.get_method() == b"CONNECT":
            self._stop(INVALID_HTTP)
        self._is_upgrade = self.parser.should_upgrade()
        if self._is_upgrade:
            return  # it comes again, without
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
        self._deadline_s = _NEVER_S  # from here on the handler's own clocks hold
        super().on_message_complete()
        if self.cycle.response_complete:  # it was answered before its body was whole
            self._rest()

    # what uvicorn calls

    def on_response_complete(self) -> None:
        if self._deadline_s != _NEVER_S:  # a pipelined request, which nobody read while this answer ran
            self._deadline_s = self._guard.clock() + self._guard.bounds.body_s
        else:
            self._rest()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing: the sweep ends what idles, and not before what came meanwhile is read."""

    def send_400_response(self, msg: str) -> None:
        """uvicorn's answer to what its parser refused, in the listener's own shape."""
        self._refuse(self._refusal or INVALID_HTTP)

    # inside

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
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
            self._feed(head + data[upgrade.args[0] :])

    def _rest(self) -> None:
        """Nothing is under way: until the next request, or for as long as that may take."""
        guard = self._guard
        self._since_s = guard.clock()
        guard.connections.spoke(self)
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
        """Close, with this answer where it is this request's turn to be answered."""
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
        """A second answer to one request, or one inside another, would be taken for the answer to something else."""
        cycle = cast(RequestResponseCycle | None, self.cycle)
        if cycle is None:
            return True
        if cycle.response_complete:
            return self._in_head  # of the next request; a body that comes late has been answered
        return not (cycle.response_started or self._in_head or self.pipeline)

    def _answers_an_earlier_request(self) -> bool:
        cycle = cast(RequestResponseCycle | None, self.cycle)
        if cycle is None or cycle.response_complete:
            return False
        return self._in_head or bool(self.pipeline)

    def _expect_reader(self) -> None:
        readers = self._guard.readers
        if readers is not None and self._who is not None:
            readers.waits(self, self._who)
        self._unread_bytes = self.unread_bytes
        self._read_by_s = self._guard.clock() + self._guard.bounds.write_stall_s

    def _nobody_waits(self) -> None:
        if self._guard.readers is not None:
            self._guard.readers.gone(self)

    def _cut_unless_read(self) -> None:
        """What was written found no reader; or one on a slow line, who has as long again for each part of it."""
        if self._unread_bytes - self.unread_bytes < self._guard.bounds.least_read_bytes:
            self.transport.abort()
        else:
            self._expect_reader()
