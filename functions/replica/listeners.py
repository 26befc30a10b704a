"""Listeners of an agent: sockets bound before anything starts, servers that ignore signals, and the peers' listener.

The peers' (gateways and other agents) stands beside the agent's own: another address, another port, a token. It begins
with the agent and outlives a drain, since peers may still want chunks of what lies here; loads are refused then by the
reconciler.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

_BACKLOG = 256


class StartFailed(Exception):
    """The agent cannot start as configured; the message says what to change."""


def bind(host: str, port: int, setting: str) -> socket.socket:
    """A listening socket; StartFailed with `setting` named, where that cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise StartFailed(f"cannot listen on {host}:{port}: {error.strerror}; free it or set {setting}") from error
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


class QuietServer(uvicorn.Server):
    """uvicorn's server without its signal handlers: here a signal starts a drain, not an end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


# uvicorn's HTTP protocol with the bounds that it lacks, for a port where requests are small and whoever asks may be
# hostile: a request must come whole within REQUEST_WITHIN_S, its head and body weigh REQUEST_MAX_BYTES at most, and
# only MAX_CONNECTIONS are open at once.
#
# Without these a client that needs no token holds a connection for as long as it likes, by sending nothing or a byte
# now and then; and each is a file descriptor that the heartbeat loop, on its way to the bus, may lack. Answers are
# timed where they are written (`chunk_routes`), an idle connection by uvicorn's own keep-alive timer.


REQUEST_WITHIN_S = 10.0
REQUEST_MAX_BYTES = 64 * 1024
MAX_CONNECTIONS = 512  # a gateway keeps a few open; more than this is no fleet of ours


class TimedHttp(HttpToolsProtocol):
    request_within_s = REQUEST_WITHIN_S
    max_connections = MAX_CONNECTIONS

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config=config, server_state=server_state, app_state=app_state, _loop=_loop)
        self._too_late: asyncio.TimerHandle | None = None  # while a request is expected or arriving
        self._arrived_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        if len(self.connections) > self.max_connections:
            self.transport.abort()
        else:
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_expecting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._too_late is None:
            self._expect()
        self._arrived_bytes += len(data)
        if self._arrived_bytes > REQUEST_MAX_BYTES:
            self.transport.abort()
        else:
            super().data_received(data)

    def on_message_complete(self) -> None:
        self._stop_expecting()
        super().on_message_complete()

    def _expect(self) -> None:
        self._arrived_bytes = 0
        self._too_late = self.loop.call_later(self.request_within_s, self.transport.abort)

    def _stop_expecting(self) -> None:
        if self._too_late is not None:
            self._too_late.cancel()
            self._too_late = None


_KEEP_ALIVE_S = 30
_CLOSE_WITHIN_S = 2


class PeerServer:
    """Started and stopped with the agent, on its loop."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        self._listener = listener
        self._server = QuietServer(
            uvicorn.Config(
                app,
                http=TimedHttp,
                ws="none",  # an upgrade would be answered before the token is asked for
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_CLOSE_WITHIN_S,
            )
        )

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    async def run(self) -> None:
        """Until `stop`."""
        await self._server.serve(sockets=[self._listener])

    def stop(self) -> None:
        self._server.should_exit = True
