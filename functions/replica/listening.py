"""How the agent listens: sockets bound before anything starts, and servers that leave signals alone."""

import contextlib
import socket
from collections.abc import Iterator

import uvicorn

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
