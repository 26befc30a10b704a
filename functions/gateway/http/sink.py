"""Receiver of an exchange's answer: the fast lane's connection, or an ASGI request.

Each call contains everything that can be sent together, so that an answer's head and its first event are one write.
"""

from typing import Protocol

from functions.api.ids import TenantId

Headers = list[tuple[bytes, bytes]]
MoreHeaders = tuple[tuple[bytes, bytes], ...]  # additional headers, often none


class Sink(Protocol):
    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a complete, not streamed answer. Nothing follows."""

    def begin_stream(self, headers: Headers, first: bytes) -> None:
        """Send a stream's head (200) and its first events."""

    def more(self, data: bytes) -> None:
        """Send further bytes of events of a stream that has begun."""

    def end(self, last: bytes) -> None:
        """Send the last bytes of a stream, possibly none, and end it. Nothing follows."""

    def cut(self) -> None:
        """Drop the client's connection because it does not read or the answer cannot end cleanly."""


class Answering(Protocol):
    """The part of an exchange that the client's connection calls."""

    ended: bool

    @property
    def tenant(self) -> TenantId:
        """Tenant of the request."""

    def client_left(self) -> None:
        """End the request because the client has disconnected. Does nothing if it has ended."""

    def pause(self) -> None:
        """Stop reading from the engine because the client reads more slowly than the gateway writes."""

    def resume(self) -> None: ...
