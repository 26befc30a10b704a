"""An event loop that stalls for longer than its timeouts, with real sockets on uvloop.

If the stall happens while the loop reads from one connection, its timers run before it reads from others. A connection
that a timer closes then, with an unread request, is reset.
"""

import asyncio
import functools
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
import uvloop
from uvicorn.server import ServerState

from functions.http.connections import Connections
from functions.http.guard import Bounds, Guard, Receive, Scope, Send
from functions.http.guarded import GuardedHttp
from functions.http.listening import Handshake, listen, server_config

_BOUND_S, _STILL_S = 1.0, 2.5  # every timeout, and the duration of the stall
_PATIENCE_S = 60.0
_REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


class _Stands(asyncio.Protocol):
    """A protocol that stalls the loop when it reads."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        os.write(self._transport.get_extra_info("socket").fileno(), b"now")  # not by the transport, which may delay it
        time.sleep(_STILL_S)  # real: uvloop's clock is


@dataclass
class _Server:
    address: tuple[str, int]
    stands: tuple[str, int]
    connections: Connections

    def connect(self) -> socket.socket:
        """Connect and wait until the server has accepted and counted the connection."""
        client = socket.create_connection(self.address, _PATIENCE_S)
        until_s = time.monotonic() + _PATIENCE_S
        while not len(self.connections):
            assert time.monotonic() < until_s
            time.sleep(0.01)  # real: another thread accepts
        return client

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Stall the loop for `_STILL_S`; data sent in the block stays unread until then."""
        with socket.create_connection(self.stands, _PATIENCE_S) as other:
            other.sendall(b"x")
            assert other.recv(3) == b"now"
            yield


@contextmanager
def _serving(tls: ssl.SSLContext | None) -> Iterator[_Server]:
    bound, stands, connections = _bound(), _bound(), Connections(8)
    guard = Guard(Bounds(head_s=_BOUND_S, body_s=_BOUND_S, keep_alive_s=_BOUND_S), connections)
    config, state = server_config(_app, guard), ServerState()
    config.load()
    loop, ready, over = uvloop.new_event_loop(), threading.Event(), asyncio.Event()

    def make(handshake: Handshake | None) -> GuardedHttp:
        made = GuardedHttp(guard, config, state, {}, loop)
        made.stands_for = handshake
        return made

    async def run() -> None:
        server = await listen(bound, make, connections, tls=tls, handshake_s=_BOUND_S, clock=time.monotonic)
        other = await loop.create_server(_Stands, sock=stands)
        ready.set()
        await over.wait()
        server.close()
        other.close()

    thread = threading.Thread(target=functools.partial(loop.run_until_complete, run()), daemon=True)
    thread.start()
    assert ready.wait(_PATIENCE_S)
    yield _Server(bound.getsockname(), stands.getsockname(), connections)
    loop.call_soon_threadsafe(over.set)
    thread.join(_PATIENCE_S)


def _bound() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def _answer(client: socket.socket) -> bytes:
    return client.recv(4096)[:15]


def test_head_sent_during_a_stall_is_read() -> None:
    with _serving(None) as server, server.connect() as client:
        with server.standing_still():
            client.sendall(_REQUEST)
        assert _answer(client) == b"HTTP/1.1 200 OK"


def test_next_request_sent_during_a_stall_is_read() -> None:
    with _serving(None) as server, server.connect() as client:
        client.sendall(_REQUEST)
        assert _answer(client) == b"HTTP/1.1 200 OK"
        with server.standing_still():
            client.sendall(_REQUEST)
        assert _answer(client) == b"HTTP/1.1 200 OK"


def test_handshake_sent_during_a_stall_is_read(certificate: tuple[Path, Path]) -> None:
    """A TLS 1.3 client can finish its handshake and send a request before the server has read either."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    with _serving(tls) as server, server.connect() as sock:
        with server.standing_still():
            trust = ssl.create_default_context(cafile=str(certificate[0]))
            client = trust.wrap_socket(sock, server_hostname="localhost")
        with client:
            client.sendall(_REQUEST)
            assert _answer(client) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("with_tls", [False, True])
def test_silent_connection_is_closed_after_a_stall(certificate: tuple[Path, Path], with_tls: bool) -> None:
    tls = None
    if with_tls:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*certificate)
    with _serving(tls) as server, server.connect() as client:
        with server.standing_still():
            pass
        assert _answer(client) == b""
