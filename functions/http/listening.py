"""Listening sockets whose connections are counted from their accept, including TLS handshakes.

    listen      one socket, any protocol: without TLS by the event loop's server, with TLS by `TlsListener`
    serve       one socket, an ASGI application behind `GuardedHttp`
    GuardedServer   uvicorn's server (drain, signals) over sockets that this module accepts on

The event loop's own server does not report a connection before its TLS handshake ends, which a client may delay for a
minute. `TlsListener` accepts connections itself: each handshake has a timeout, counts as a connection, and can be
closed to make room.
"""

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import uvicorn
from uvicorn.config import Config
from uvicorn.server import ServerState

from functions.fleet.own_stalls import SECOND_LOOK_S
from functions.http.connections import Connections, address_of
from functions.http.guard import ASGIApp, Guard
from functions.http.guarded import GuardedHttp

_log = logging.getLogger(__name__)
_ACCEPTS_AT_ONCE = 64  # then other tasks of the event loop run
_WITHOUT_DESCRIPTORS_S = 1.0
_BACKLOG = 2048
_NOT_THE_LOOPS_S = 3600.0  # disables asyncio's timer, which does not allow for a stall of the loop


class Handshake:
    """A connection whose TLS handshake is under way."""

    def __init__(self, accepted: socket.socket, now_s: float) -> None:
        self._accepted = accepted
        self.due_s = float("inf")  # the listener enforces the timeout
        self.idle_since_s: float | None = now_s

    def check(self, now_s: float) -> None:
        """Do nothing: see `due_s`."""

    def give_way(self) -> None:
        with contextlib.suppress(OSError):  # the peer may just have reset it
            self._accepted.shutdown(socket.SHUT_RDWR)  # makes the handshake fail, which closes the socket


MakeProtocol = Callable[["Handshake | None"], asyncio.Protocol]


class Server(Protocol):
    """The part of uvicorn's server interface that is used here."""

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


class TlsListener:
    """Accept connections on the event loop's thread and run their TLS handshakes concurrently."""

    def __init__(
        self,
        listener: socket.socket,
        tls: ssl.SSLContext,
        make_protocol: MakeProtocol,
        connections: Connections,
        *,
        handshake_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._listener, self._tls, self._make_protocol = listener, tls, make_protocol
        self._connections, self._handshake_s, self._clock = connections, handshake_s, clock
        self._loop = asyncio.get_running_loop()
        self._under_way: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._open = True
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Close the listening socket, so that no connection is accepted; handshakes under way continue."""
        if not self._open:
            return
        self._open = False
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    async def wait_closed(self) -> None:
        """Wait until every handshake has ended."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                accepted, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # for example no file descriptors left: other connections must end first
                _log.warning(
                    "connections cannot be accepted: %s; next attempt in %.0f s", error, _WITHOUT_DESCRIPTORS_S
                )
                self._loop.remove_reader(self._listener)
                self._retry = self._loop.call_later(_WITHOUT_DESCRIPTORS_S, self._accept_again)
                return
            self._start_handshake(accepted, address_of(peer))

    def _accept_again(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _start_handshake(self, accepted: socket.socket, address: str) -> None:
        accepted.setblocking(False)
        handshake = Handshake(accepted, self._clock())
        if not self._connections.add(handshake, address):
            accepted.close()  # before TLS there is no way to send an error
            return
        task = self._loop.create_task(self._shake(handshake, accepted), name="handshake")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _shake(self, handshake: Handshake, accepted: socket.socket) -> None:
        shaking = self._loop.create_task(
            self._loop.connect_accepted_socket(
                lambda: self._make_protocol(handshake),
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=_NOT_THE_LOOPS_S,
            ),
            name="handshake's transport",
        )
        try:
            for wait_s in (self._handshake_s, SECOND_LOOK_S):
                if (await asyncio.wait({shaking}, timeout=wait_s))[0]:
                    break
            else:
                handshake.give_way()
            await shaking
        except (OSError, ssl.SSLError) as error:
            _log.debug("a handshake failed: %s", error)
        finally:
            self._connections.discard(handshake)  # no effect if the handshake's connection has replaced it


async def listen(
    listener: socket.socket,
    make_protocol: MakeProtocol,
    connections: Connections,
    *,
    tls: ssl.SSLContext | None,
    handshake_s: float,
    clock: Callable[[], float],
    backlog: int = _BACKLOG,
) -> Server:
    """Serve a bound socket, over TLS if `tls` is given, until the returned server is closed."""
    if tls is None:
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: make_protocol(None), sock=listener, backlog=backlog)
    listener.listen(backlog)
    tls.set_alpn_protocols(["http/1.1"])  # a client that also offers h2 is refused it during the handshake
    return TlsListener(listener, tls, make_protocol, connections, handshake_s=handshake_s, clock=clock)


def server_config(app: ASGIApp, guard: Guard, protocol: type[GuardedHttp] = GuardedHttp, **more: Any) -> Config:
    """Return uvicorn's configuration for a server with this guard."""
    return Config(
        cast(Any, app),
        http=cast(Any, functools.partial(protocol, guard)),
        ws="none",  # an upgrade would be answered before the application sees it
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the peer is the socket's: access control of agents relies on it
        timeout_keep_alive=int(guard.bounds.keep_alive_s),
        **more,
    )


async def serve(app: ASGIApp, listener: socket.socket, guard: Guard) -> asyncio.Server:
    """Serve an application on its own socket on the running event loop, without a drain, until the returned server is
    closed."""
    config = server_config(app, guard)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: GuardedHttp(guard, config, state, {}), sock=listener)


class GuardedServer(uvicorn.Server):
    """uvicorn's server over sockets whose handshakes are counted and timed."""

    def __init__(self, config: Config, guard: Guard) -> None:
        super().__init__(config)
        self._guard = guard

    async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
        await super().startup([])  # uvicorn itself listens on nothing
        for listener in sockets or ():
            await self.listen(listener)

    async def listen(self, listener: socket.socket) -> None:
        guard, config = self._guard, self.config

        def make_protocol(handshake: Handshake | None) -> asyncio.Protocol:
            made = cast(GuardedHttp, config.http_protocol_class(config, self.server_state, self.lifespan.state))  # type: ignore[call-arg]
            if handshake is not None:
                made.stands_for = handshake
            return made

        server = await listen(
            listener,
            make_protocol,
            guard.connections,
            tls=config.ssl,
            handshake_s=guard.bounds.head_s,
            clock=guard.clock,
            backlog=config.backlog,
        )
        self.servers.append(cast(asyncio.base_events.Server, server))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, wait for TLS handshakes under way, which uvicorn does not know of, and then run uvicorn's
        shutdown."""
        for server in self.servers:
            server.close()
        for server in self.servers:
            if isinstance(server, TlsListener):
                await server.wait_closed()
        await super().shutdown(sockets)
