"""Ports for servers that tests start, which the system assigns to no other process before the server binds.

The system can assign a free port to any process, and a test's server may need seconds until it binds. A connection that
was opened and closed leaves its port in TIME_WAIT for a minute. In that time the system does not choose the port for
another process, but a server that names it can bind it (with SO_REUSEADDR on both sides).
"""

import socket
from contextlib import ExitStack


def free_ports(count: int) -> list[int]:
    """Return distinct free ports on loopback, reserved for a minute."""
    with ExitStack() as opened:
        listeners = [opened.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
        for listener in listeners:
            _leave_a_trace(listener)
        return [listener.getsockname()[1] for listener in listeners]


def free_port() -> int:
    return free_ports(1)[0]


def _leave_a_trace(listener: socket.socket) -> None:
    """Close a connection from the server's side first, so that the server's port stays in TIME_WAIT."""
    with socket.create_connection(listener.getsockname()) as client:
        ours, _ = listener.accept()
        ours.close()
        client.recv(1)
