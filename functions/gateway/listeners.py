"""Listening sockets of a gateway: its ports, who shares them, and how many connections its descriptors bear.

They are made (or inherited from a predecessor) before anything else, so that a port that is taken is said at once and
in words.
"""

import resource
import socket

from functions.api.netloc import netloc
from functions.gateway.settings import GatewaySettings
from functions.http.binding import bound

BACKLOG = 4096
# What the kernel keeps for one client that reads slowly; left alone it grows to 4 MiB, 38 GB of them for 9,500 clients.
# Over 150 ms it leaves each of them 1.5 MB/s.
_SEND_BYTES = 256 * 1024
_SPARE_DESCRIPTORS = 256  # listeners, bus, registry, logs


class StartFailed(Exception):
    """The gateway cannot start as configured; the message says what to change."""


def _listener_ports(settings: GatewaySettings) -> list[tuple[str, int]]:
    ports = [("PORT", settings.port), ("PLAIN_PORT", settings.plain_port), ("METRICS_PORT", settings.metrics_port)]
    return [(name, port) for name, port in ports if port]


def listener_count(settings: GatewaySettings) -> int:
    return len(_listener_ports(settings))


def bind_all(settings: GatewaySettings) -> list[socket.socket]:
    listeners: list[socket.socket] = []
    try:
        for name, port in _listener_ports(settings):
            shared = settings.reuse_port and name != "METRICS_PORT"
            listeners.append(_bind(settings.host, port, f"SHOAL_GATEWAY_{name}", shared=shared))
    except StartFailed:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _bind(host: str, port: int, setting: str, *, shared: bool) -> socket.socket:
    options = [(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)]  # its connections have it from it
    if shared:
        options.append((socket.SOL_SOCKET, socket.SO_REUSEPORT, 1))
    try:
        listener = bound(host, port, *options)
    except OSError as error:
        raise StartFailed(
            f"cannot listen on {netloc(host, port)}: {error.strerror}; free it or set {setting}"
        ) from error
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def raise_descriptor_limit() -> None:
    """The usual soft limit of 1,024 bears 384 streams; the hard one is what the operator allows."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def bearable_connections() -> int:
    """A stream uses two descriptors: its client's and its engine's."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(1, (descriptors - _SPARE_DESCRIPTORS) // 2)
