"""Listeners of an agent: sockets bound before anything starts, servers that ignore signals, and the peers' listener.

The peers' listener (for gateways and other agents) has its own address and port and requires a token. It starts with
the agent and outlives a drain, because peers may still need chunks from this node; the reconciler rejects loads then.
"""

import contextlib
import socket
from collections.abc import Iterator

import orjson
from starlette.types import ASGIApp

from functions.api.netloc import netloc
from functions.http.binding import bind_socket
from functions.http.connections import Connections
from functions.http.guard import Bounds, Guard, Headers, Refusal
from functions.http.listening import GuardedServer, server_config

_BACKLOG = 256


class AgentStartFailed(Exception):
    """The agent cannot start as configured; the message says what to change."""


def bind(host: str, port: int, setting: str) -> socket.socket:
    """Return a listening, non-blocking socket. Raise AgentStartFailed, naming `setting`, if the address cannot be
    used."""
    try:
        listener = bind_socket(host, port)
    except OSError as error:
        raise AgentStartFailed(
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


# Bounds of both ports: requests are small, and callers may be hostile. Each connection uses a file descriptor that
# the heartbeat loop may lack for the bus. Answers are also timed where they are written (`chunk_routes`).

PEER_BOUNDS = Bounds(
    body_bytes=64 * 1024,
    body_s=10.0,
    keep_alive_s=30.0,
    least_read_bytes=256 * 1024,  # one slice of a chunk in `chunk_routes`
)
PEER_CONNECTIONS = 512  # a gateway keeps a few open, so more than this is no normal fleet
AGENT_BOUNDS = Bounds(body_bytes=64 * 1024, body_s=10.0, keep_alive_s=30.0)
AGENT_CONNECTIONS = 64  # for kubelet, scraper and supervisor


def refusal_of(refusal: Refusal) -> tuple[Headers, bytes]:
    """Return headers and body that report a parser's refusal in the form of the routes' errors."""
    return [(b"content-type", b"application/json")], orjson.dumps({"reason": refusal.message})


def agent_server(app: ASGIApp) -> QuietServer:
    """Return a server for the agent's own port, with that port's limits; it is not started."""
    guard = Guard(AGENT_BOUNDS, Connections(AGENT_CONNECTIONS), refusal_of)
    return QuietServer(server_config(app, guard), guard)


_CLOSE_WITHIN_S = 2


class PeerServer:
    """Server for peers. It starts and stops with the agent, on its loop."""

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        bounds: Bounds = PEER_BOUNDS,
        most_connections: int = PEER_CONNECTIONS,
    ) -> None:
        self._listener = listener
        guard = Guard(bounds, Connections(most_connections), refusal_of)
        self._server = QuietServer(server_config(app, guard, timeout_graceful_shutdown=_CLOSE_WITHIN_S), guard)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    async def run(self) -> None:
        """Serve peers on the listener until `stop` is called."""
        await self._server.serve(sockets=[self._listener])

    def stop(self) -> None:
        self._server.should_exit = True
