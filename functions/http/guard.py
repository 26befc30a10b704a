"""Limits, connection count and error format that the connections of one listener share.

    Bounds      limits of one connection
    Refusal     an error that the listener answers by itself; `plain_text_answer` formats it as plain text
    Guard       these plus the listener's connections, which it sweeps while there are any

`guarded` has the protocol that enforces them.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

from functions.fleet.own_stalls import StallGuard
from functions.http.connections import Connections

_SWEEP_S = 0.5


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one connection."""

    head_bytes: int = 16 * 1024  # request line and headers together
    header_count: int = 64
    pipelined: int = 16  # requests queued behind the one being answered: each costs 3 KB for 18 bytes on the wire
    body_bytes: int | None = None  # None means that the code that reads bodies limits them

    head_s: float = 10.0  # from the first byte (or the connection) to the end of the headers
    body_s: float = 30.0  # from the headers to the end of the body
    upload_s: float = 900.0  # replaces `body_s` for paths in `uploads`
    uploads: frozenset[bytes] = frozenset()  # paths whose bodies may be large
    keep_alive_s: float = 75.0  # between two requests
    lame_duck_s: float = 0.0  # replaces `keep_alive_s` while draining: long enough for a request on its way
    write_stall_s: float = 30.0  # time in which a client must read `least_read_bytes` of the data that waits for it
    least_read_bytes: int = 512 * 1024  # 17 KB/s: the largest answer takes half an hour


class Refusal(NamedTuple):
    status: int
    code: str
    message: str


INVALID_HTTP = Refusal(400, "invalid_http", "This is not well-formed HTTP/1.1.")
TOO_SLOW = Refusal(408, "request_timeout", "The request did not arrive in time. Send it again.")
TURNED_AWAY = Refusal(503, "overloaded", "The server has reached its connection limit. Try again shortly.")

Headers = list[tuple[bytes, bytes]]

# ASGI types
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


def plain_text_answer(refusal: Refusal) -> tuple[Headers, bytes]:
    """Return the headers and body of a refusal as plain text, for ports that are scraped, probed or called by
    webhooks."""
    return [(b"content-type", b"text/plain; charset=utf-8")], f"{refusal.message}\n".encode()


def whole_answer(refusal: Refusal, headers: Headers, body: bytes) -> bytes:
    """Return the bytes of a complete HTTP answer that closes the connection. It needs no parsed request: the input may
    not have been HTTP."""
    lines = [b"HTTP/1.1 %d %b\r\n" % (refusal.status, HTTPStatus(refusal.status).phrase.encode())]
    lines += [b"%b: %b\r\n" % header for header in headers]
    lines.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body))
    return b"".join(lines) + body


class Reader(Protocol):
    """A client that has not read all of an answer."""

    @property
    def unread_bytes(self) -> int: ...

    def give_way(self) -> None:
        """Close the connection immediately."""


class Readers(Protocol):
    """Registry of authenticated clients with unread answers, by the identity that `authenticated` gave."""

    def add_waiting(self, reader: Reader, who: Any) -> None: ...

    def remove_waiting(self, reader: Reader) -> None: ...


@dataclass(slots=True)
class Guard:
    """State that the connections of one listener share."""

    bounds: Bounds
    connections: Connections
    refusal: Callable[[Refusal], tuple[Headers, bytes]] = plain_text_answer  # headers and body, without content-length
    clock: Callable[[], float] = time.monotonic
    on_refused: Callable[[int], None] = lambda status: None
    readers: Readers | None = None  # notified of clients that do not read
    lame_duck_s: float = -1.0  # negative: as in `bounds`; a drain with more time sets another value
    sweeps_itself: bool = True  # False: another component calls `connections.sweep`
    _swept: asyncio.TimerHandle | None = None
    _rounds: StallGuard = field(default_factory=lambda: StallGuard(_SWEEP_S, 0.0))

    def __post_init__(self) -> None:
        if self.lame_duck_s < 0:
            self.lame_duck_s = self.bounds.lame_duck_s

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the periodic sweep, which runs until there is no connection left. Nothing happens if it is running, or
        if another component sweeps."""
        if self.sweeps_itself and self._swept is None:
            self._rounds.since_s = self.clock()
            self._swept = loop.call_later(_SWEEP_S, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._swept = None
        now_s = self.clock()
        if self._rounds.is_on_time(now_s):
            self.connections.sweep(now_s)
        if self.connections:
            self.watch(loop)
