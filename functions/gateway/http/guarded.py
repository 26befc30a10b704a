"""uvicorn's HTTP protocol with the clocks and bounds that it lacks.

A head and a body must arrive in time, a head may weigh so much, a client must read what it is sent, and a connection
that closes must come to its end: without these, half a header or an unread answer holds a connection for ever. Bodies
are bounded and timed again where they are read (`plain.py`).
"""

import asyncio
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from functions.gateway import errors
from functions.gateway.errors import ErrorAnswer, Refused
from functions.gateway.http.headers import request_id_of
from functions.gateway.request import replies
from functions.gateway.services import Services

_NEVER_S = float("inf")
_UPLOADS = (b"/v1/files", b"/v1/artifacts")  # bodies of a size of their own, timed where they are received
_INVALID_HTTP = ErrorAnswer(400, "invalid_request_error", "invalid_http", "This is not well-formed HTTP/1.1.")


class GuardedHttpTools(HttpToolsProtocol):
    due_s = 0.0  # at every sweep: a transport does not report that it closes

    def __init__(
        self,
        services: Services,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config=config, server_state=server_state, app_state=app_state, _loop=_loop)
        self._services = services
        self._deadline_s = _NEVER_S  # of the head or the body that is arriving
        self._unread_since_s = _NEVER_S  # the client has stopped reading, or the connection closes
        self._head_bytes = 0  # as the parser reports it
        self._unended_bytes = 0  # read since the head began, for what the parser does not report yet
        self._in_head = False
        self._too_large: ErrorAnswer | None = None

    # what the transport and the sweep call

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._services.connections.add(self)
        self._deadline_s = self._services.clock() + self._services.limits.head_s

    def connection_lost(self, exc: Exception | None) -> None:
        self._services.connections.discard(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_since_s = self._services.clock()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread_since_s = _NEVER_S

    def check(self, now_s: float) -> None:
        if self.transport.is_closing():
            self._unread_since_s = min(self._unread_since_s, now_s)
        if now_s - self._unread_since_s > self._services.limits.write_stall_s:
            self.transport.abort()
        elif now_s >= self._deadline_s and not self._answers_an_earlier_request():
            self._refuse(errors.request_timeout("The request"))

    # what the parser calls

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes, self._unended_bytes = True, 0, 0
        self._deadline_s = self._services.clock() + self._services.limits.head_s

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + len(b": \r\n"))
        if self._in_head:  # uvicorn would take a trailer for a header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        limits = self._services.limits
        self._deadline_s = self._services.clock() + (limits.upload_s if self.url in _UPLOADS else limits.body_s)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._deadline_s = _NEVER_S  # from here on uvicorn's keep-alive timer and the handler's own clocks hold
        super().on_message_complete()

    # what uvicorn calls

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._unended_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._unended_bytes > self._services.limits.head_bytes:
            self._refuse(self._head_too_large())

    def on_response_complete(self) -> None:
        if self._deadline_s != _NEVER_S:  # a pipelined request, which nobody read while this answer ran
            self._deadline_s = self._services.clock() + self._services.limits.body_s
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's answer to what its parser refused, in our shape."""
        self._refuse(self._too_large or _INVALID_HTTP)

    # inside

    def _count_head(self, added_bytes: int) -> None:
        self._head_bytes += added_bytes
        if self._head_bytes > self._services.limits.head_bytes:
            self._too_large = self._head_too_large()
            raise Refused(self._too_large)  # stops the parser, which makes uvicorn call send_400_response

    def _head_too_large(self) -> ErrorAnswer:
        return errors.headers_too_large(f"The head is over {self._services.limits.head_bytes} bytes.")

    def _refuse(self, answer: ErrorAnswer) -> None:
        """Close, with this answer where it is this request's turn to be answered."""
        self._deadline_s = _NEVER_S
        if self._may_answer():
            self.transport.write(_whole(answer))
            self._services.metrics.refused(answer.status)
        self._in_head = False
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


def _whole(answer: ErrorAnswer) -> bytes:
    body = answer.body()
    headers = replies.error_headers(request_id_of([]), answer)
    lines = [b"HTTP/1.1 %d Refused\r\n" % answer.status]
    lines += [b"%b: %b\r\n" % header for header in headers]
    lines.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body))
    return b"".join(lines) + body
