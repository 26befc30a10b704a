"""Listeners of an agent: sockets bound before anything starts, servers that ignore signals, and the peers' listener.

The peers' (gateways and other agents) stands beside the agent's own: another address, another port, a token. It begins
with the agent and outlives a drain, since peers may still want chunks of what lies here; loads are refused then by the
reconciler.
"""

import contextlib
import socket
from collections.abc import Iterator

import orjson
from starlette.types import ASGIApp

from functions.api.netloc import netloc
from functions.http.binding import bound
from functions.http.connections import Connections
from functions.http.guard import Bounds, Guard, Headers, Refusal
from functions.http.listening import GuardedServer, config_of

_BACKLOG = 256


class StartFailed(Exception):
    """The agent cannot start as configured; the message says what to change."""


def bind(host: str, port: int, setting: str) -> socket.socket:
    """A listening socket; StartFailed with `setting` named, where that cannot be."""
    try:
        listener = bound(host, port)
    except OSError as error:
        raise StartFailed(
            f"cannot listen on {netloc(host, port)}: {error.strerror}; free it or set {setting}"
        ) from error
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


class QuietServer(GuardedServer):
    """uvicorn's server without its signal handlers: here a signal starts a drain, not an end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


# Bounds of both ports: requests are small, and whoever asks may be hostile. Each connection is a file descriptor that
# the heartbeat loop, on its way to the bus, may lack; answers are timed where they are written (`chunk_routes`), too.

PEER_BOUNDS = Bounds(
    body_bytes=64 * 1024,
    body_s=10.0,
    keep_alive_s=30.0,
    least_read_bytes=256 * 1024,  # a slice of a chunk, as `chunk_routes` has it
)
PEER_CONNECTIONS = 512  # a gateway keeps a few open; more than this is no fleet of ours
AGENT_BOUNDS = Bounds(body_bytes=64 * 1024, body_s=10.0, keep_alive_s=30.0)
AGENT_CONNECTIONS = 64  # a kubelet's, a scraper's, a supervisor's


def refusal_of(refusal: Refusal) -> tuple[Headers, bytes]:
    """What the parser refuses, as the routes say it."""
    return [(b"content-type", b"application/json")], orjson.dumps({"reason": refusal.message})


def agent_server(app: ASGIApp) -> QuietServer:
    """Of the agent's own port."""
    guard = Guard(AGENT_BOUNDS, Connections(AGENT_CONNECTIONS), refusal_of)
    return QuietServer(config_of(app, guard), guard)


_CLOSE_WITHIN_S = 2


class PeerServer:
    """Started and stopped with the agent, on its loop."""

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        bounds: Bounds = PEER_BOUNDS,
        most_connections: int = PEER_CONNECTIONS,
    ) -> None:
        self._listener = listener
        guard = Guard(bounds, Connections(most_connections), refusal_of)
        self._server = QuietServer(config_of(app, guard, timeout_graceful_shutdown=_CLOSE_WITHIN_S), guard)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    async def run(self) -> None:
        """Until `stop`."""
        await self._server.serve(sockets=[self._listener])

    def stop(self) -> None:
        self._server.should_exit = True
