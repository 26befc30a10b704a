"""uvicorn's HTTP protocol with the clocks and bounds that it lacks: a head and a body must arrive in time.

Bodies are bounded and timed again where they are read (`plain.py`); here the connection itself is watched, since
without this a client that sends half a header holds its connection for ever.
"""

import asyncio
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from functions.gateway import answers, errors
from functions.gateway.core import Gateway
from functions.gateway.errors import ErrorAnswer
from functions.gateway.request_headers import request_id_of


class GuardedHttpTools(HttpToolsProtocol):
    def __init__(
        self,
        gateway: Gateway,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config=config, server_state=server_state, app_state=app_state, _loop=_loop)
        self._gateway = gateway
        self._deadline_s = float("inf")
        self._head_bytes = 0
        self._in_head = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._gateway.watched.add(self)
        self._deadline_s = self._gateway.clock() + self._gateway.limits.head_s

    def connection_lost(self, exc: Exception | None) -> None:
        self._gateway.watched.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head or self._deadline_s == float("inf"):
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > self._gateway.limits.head_bytes:
            self._refuse(errors.headers_too_large(f"The head is over {self._gateway.limits.head_bytes} bytes."))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._deadline_s = self._gateway.clock() + self._gateway.limits.head_s

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._deadline_s = self._gateway.clock() + self._gateway.limits.body_s
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._deadline_s = float("inf")  # from here on uvicorn's keep-alive timer and the handler's own clocks hold
        super().on_message_complete()

    def check(self, now_s: float) -> None:
        if now_s >= self._deadline_s:
            self._refuse(errors.request_timeout("The request"))

    def send_400_response(self, msg: str) -> None:
        """uvicorn's own answer to bytes that are not HTTP, in our shape."""
        self._refuse(ErrorAnswer(400, "invalid_request_error", "invalid_http", "This is not well-formed HTTP/1.1."))

    def _refuse(self, answer: ErrorAnswer) -> None:
        self._deadline_s = float("inf")
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(_whole(answer))
        self._gateway.metrics.refused(answer.status)
        self.transport.close()


def _whole(answer: ErrorAnswer) -> bytes:
    body = answer.body()
    headers = answers.error_headers(request_id_of([]), answer)
    lines = [b"HTTP/1.1 %d Refused\r\n" % answer.status]
    lines += [b"%b: %b\r\n" % header for header in headers]
    lines.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body))
    return b"".join(lines) + body
