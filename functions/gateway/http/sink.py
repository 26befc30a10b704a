"""Sink of an exchange's answer: the fast lane's connection, or an ASGI request.

Each call carries all that may go out together, so that an answer's head and its first event are one write.
"""

from typing import Protocol

from functions.api.ids import TenantId

Headers = list[tuple[bytes, bytes]]
MoreHeaders = tuple[tuple[bytes, bytes], ...]  # what is said besides, often nothing


class Sink(Protocol):
    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """The complete answer at once; nothing follows."""

    def begin(self, headers: Headers, first: bytes) -> None:
        """A stream's head (200) and its first events."""

    def more(self, data: bytes) -> None:
        """Further events."""

    def end(self, last: bytes) -> None:
        """The last events, maybe none; nothing follows."""

    def cut(self) -> None:
        """Drop the client's connection: it does not read, or there is no clean end left."""


class Answering(Protocol):
    """What a sink is answered by, as far as the client's side has something to say to it."""

    ended: bool

    @property
    def tenant(self) -> TenantId:
        """Whose request it is."""

    def client_left(self) -> None:
        """Nobody reads on; does nothing where it has ended."""

    def pause(self) -> None:
        """The client reads more slowly than is written."""

    def resume(self) -> None: ...
