"""Ports for servers that tests start: nobody else is given one between the moment it is chosen and the server's bind.

A port that was merely free a moment ago goes to whoever asks the system next, and a test's server may need seconds to
come to its bind. A connection that was opened and closed leaves its port in TIME_WAIT: for a minute the system gives
it to nobody who asks for any port, while a server that names it gets it (with SO_REUSEADDR, on both sides).
"""

import socket
from contextlib import ExitStack


def free_ports(count: int) -> list[int]:
    """Different ports on loopback where nobody listens, kept for a minute."""
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
    """The side that closes first keeps its port in TIME_WAIT: ours."""
    with socket.create_connection(listener.getsockname()) as client:
        ours, _ = listener.accept()
        ours.close()
        client.recv(1)
