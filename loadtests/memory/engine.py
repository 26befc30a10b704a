"""An engine that answers within the call that sends the request, without a socket, so only the gateway uses memory.

Connections and pool are the gateway's own; only the transport below them is a fake.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from functions.api.ids import ReplicaId
from functions.gateway.request.upstream import UpstreamConnection, UpstreamPool

_TOKENS = 12
_USAGE = b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}'
_WHOLE = b'{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant",' + (
    b'"content":"fine"},"finish_reason":"stop"}],"usage":%b}'
)
_EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":"a"}}]}'
)
_LAST = b'data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[],"usage":%b}'
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"


class Transport(asyncio.Transport):
    """A transport that answers each write with a complete response."""

    def __init__(self) -> None:
        super().__init__()
        self._closing = False
        self.connection: UpstreamConnection | None = None

    def write(self, data: Any) -> None:
        assert self.connection is not None
        self.connection.data_received(_answer(bytes(data)))

    def is_closing(self) -> bool:
        return self._closing

    def abort(self) -> None:
        self._closing = True

    def pause_reading(self) -> None:
        """Do nothing: every answer has already arrived."""

    def resume_reading(self) -> None:
        """Do nothing: every answer has already arrived."""


class Engines(UpstreamPool):
    """The gateway's connection pool, which always has an idle connection."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock, idle_per_replica=8, keep_alive_s=4.0)

    def pop_idle(self, replica_id: ReplicaId) -> UpstreamConnection:
        known = super().pop_idle(replica_id)
        if known is not None:
            return known
        transport = Transport()
        transport.connection = UpstreamConnection(self, replica_id)
        transport.connection.connection_made(transport)
        return transport.connection


def _answer(request: bytes) -> bytes:
    prompt_tokens = len(request) // 4
    usage = _USAGE % (prompt_tokens, _TOKENS, prompt_tokens + _TOKENS, prompt_tokens // 2)
    if b'"stream":true' not in request:
        body = _WHOLE % usage
        return _HEAD % (b"application/json", len(body), body)
    body = b"\n\n".join([*[_EVENT] * _TOKENS, _LAST % usage, b"data: [DONE]", b""])
    return _HEAD % (b"text/event-stream", len(body), body)
