"""Access to the socket under a response, for what ASGI cannot express: disconnects, a full buffer and broken bytes.

uvicorn still writes the head and the end of every response. Between them a stream writes its own transfer chunks,
which saves a coroutine round trip per token (1,000 streams of 20 tokens a second cost 0.4 of a core, most of it the
kernel's). The protocol class puts itself into each request's scope under one key.
"""

import socket
import struct
from collections.abc import Callable, MutableMapping
from typing import Any

from functions.http.guard import Bounds
from functions.http.guarded import GuardedHttp, client_of

# vLLM has no such limits; these only keep a broken client from exhausting the process. Slow readers are the gateway's
# task, which pauses an engine for as long as its client does.
BOUNDS = Bounds(head_bytes=64 * 1024, header_count=256, body_s=60.0, write_stall_s=3600.0, least_read_bytes=1)
CONNECTIONS = 20_000
_LINGER_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with zero seconds: closing sends RST and discards buffered data."""


class OpenProtocol(GuardedHttp):
    """uvicorn's protocol with access to its transport."""

    on_lost: Callable[[], None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()


class ClientConnection:
    def __init__(self, protocol: OpenProtocol) -> None:
        self._protocol = protocol
        self._transport = protocol.transport

    @classmethod
    def from_scope(cls, scope: MutableMapping[str, Any]) -> "ClientConnection":
        protocol = client_of(scope)
        assert isinstance(protocol, OpenProtocol)
        return cls(protocol)

    @property
    def closing(self) -> bool:
        return bool(self._transport.is_closing())

    @property
    def congested(self) -> bool:
        """True if the client reads more slowly than the engine writes."""
        return bool(self._protocol.flow.write_paused)

    def set_lost_callback(self, tell: Callable[[], None] | None) -> None:
        """Call `tell` once when the client disconnects; None removes the callback."""
        self._protocol.on_lost = tell

    async def wait_until_drained(self) -> None:
        await self._protocol.flow.drain()

    def write(self, data: bytes) -> None:
        """Write data, or do nothing if the client has left: its stream detects that separately."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def write_chunk(self, data: bytes) -> None:
        """Write one transfer chunk. Empty data is skipped, because an empty chunk would end the body."""
        if data:
            self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def close(self) -> None:
        self._transport.close()

    def reset(self) -> None:
        """Close the connection with RST instead of FIN, so that the peer's next read fails; do nothing if it is
        closing."""
        if self._transport.is_closing():
            return
        raw = self._transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
        self._transport.abort()
