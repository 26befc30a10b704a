"""Listening sockets of a gateway: ports, port sharing, and the connection limit that follows from file descriptors.

They are bound (or inherited from a predecessor) before anything else, so that a port in use is reported immediately.
"""

import resource
import socket

from functions.api.netloc import netloc
from functions.gateway.settings import GatewaySettings
from functions.http.binding import bind_socket

BACKLOG = 4096
# Send buffer of the kernel for one client. By default it grows to 4 MiB, 38 GB for 9,500 clients that read slowly. At
# a round trip of 150 ms, 256 KiB allows 1.5 MB/s for each client.
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
    options = [(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)]  # accepted connections inherit it
    if shared:
        options.append((socket.SOL_SOCKET, socket.SO_REUSEPORT, 1))
    try:
        listener = bind_socket(host, port, *options)
    except OSError as error:
        raise StartFailed(
            f"cannot listen on {netloc(host, port)}: {error.strerror}; free it or set {setting}"
        ) from error
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def raise_descriptor_limit() -> None:
    """Raise this process's soft limit of file descriptors to the hard one: the usual 1,024 allows only 384 streams."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def bearable_connections() -> int:
    """Return the number of client connections that the soft limit of file descriptors allows: each may use two."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(1, (descriptors - _SPARE_DESCRIPTORS) // 2)
