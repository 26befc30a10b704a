"""A loop that stood still for longer than its bounds, with real sockets on uvloop: its timers run before what came
meanwhile is read, and a connection that is closed then, with a request unread, is reset.
"""

import asyncio
import functools
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvloop
from uvicorn.server import ServerState

from functions.http.connections import Connections
from functions.http.guard import Bounds, Guard, Receive, Scope, Send
from functions.http.guarded import GuardedHttp
from functions.http.listening import Handshake, config_of, listen

_BOUND_S, _STILL_S = 1.0, 2.5  # each bound, and for how long the loop stands still: real, since uvloop's clock is
_PATIENCE_S = 60.0
_REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@dataclass
class _Server:
    loop: asyncio.AbstractEventLoop
    address: tuple[str, int]
    connections: Connections

    def connect(self) -> socket.socket:
        """Accepted, and counted."""
        client = socket.create_connection(self.address, _PATIENCE_S)
        until_s = time.monotonic() + _PATIENCE_S
        while not len(self.connections):
            assert time.monotonic() < until_s
            time.sleep(0.01)  # real: another thread accepts
        return client

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Within, the loop begins to; what is sent then lies unread."""
        stands = threading.Event()

        def stand() -> None:
            stands.set()
            time.sleep(_STILL_S)

        self.loop.call_soon_threadsafe(stand)
        assert stands.wait(_PATIENCE_S)
        yield


@contextmanager
def _serving(tls: ssl.SSLContext | None) -> Iterator[_Server]:
    bound, connections = socket.create_server(("127.0.0.1", 0)), Connections(8)
    guard = Guard(Bounds(head_s=_BOUND_S, body_s=_BOUND_S, keep_alive_s=_BOUND_S), connections)
    config, state = config_of(_app, guard), ServerState()
    config.load()
    loop, ready, over = uvloop.new_event_loop(), threading.Event(), asyncio.Event()

    def make(handshake: Handshake | None) -> GuardedHttp:
        made = GuardedHttp(guard, config, state, {}, loop)
        made.stands_for = handshake
        return made

    async def run() -> None:
        server = await listen(
            bound, make, connections, tls=tls, handshake_s=_BOUND_S, clock=time.monotonic
        )  # fmt: skip
        ready.set()
        await over.wait()
        server.close()

    thread = threading.Thread(target=functools.partial(loop.run_until_complete, run()), daemon=True)
    thread.start()
    assert ready.wait(_PATIENCE_S)
    yield _Server(loop, bound.getsockname(), connections)
    loop.call_soon_threadsafe(over.set)
    thread.join(_PATIENCE_S)


def _answer(client: socket.socket) -> bytes:
    return client.recv(4096)[:15]


def test_a_head_that_came_in_time_is_read() -> None:
    with _serving(None) as server, server.connect() as client:
        with server.standing_still():
            client.sendall(_REQUEST)
        assert _answer(client) == b"HTTP/1.1 200 OK"


def test_the_next_request_of_a_connection_that_idled_is_read() -> None:
    with _serving(None) as server, server.connect() as client:
        client.sendall(_REQUEST)
        assert _answer(client) == b"HTTP/1.1 200 OK"
        with server.standing_still():
            client.sendall(_REQUEST)
        assert _answer(client) == b"HTTP/1.1 200 OK"


def test_a_handshake_that_came_in_time_is_read(certificate: tuple[Path, Path]) -> None:
    """Of TLS 1.3 a client's is over, and its request sent, before the server has read of either."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    with _serving(tls) as server, server.connect() as wire:
        with server.standing_still():
            trust = ssl.create_default_context(cafile=str(certificate[0]))
            client = trust.wrap_socket(wire, server_hostname="localhost")
        with client:
            client.sendall(_REQUEST)
            assert _answer(client) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("with_tls", [False, True])
def test_who_says_nothing_is_closed_all_the_same(certificate: tuple[Path, Path], with_tls: bool) -> None:
    tls = None
    if with_tls:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*certificate)
    with _serving(tls) as server, server.connect() as client:
        with server.standing_still():
            pass
        assert _answer(client) == b""
