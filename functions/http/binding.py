"""Bind listening sockets before anything else starts, so that a port in use is reported immediately.

    10.0.0.7, fd00::7, localhost    that address
    0.0.0.0                         all IPv4 addresses
    ::                              all addresses of both families, so that manifests do not depend on the cluster's
                                    IP family; IPv4 only if the kernel has no IPv6

On `::`, an IPv4 peer appears as ::ffff:10.0.0.7. Code that checks peer addresses must check the embedded IPv4 address.
"""

import socket

EVERY = "::"


def bind_socket(host: str, port: int, *options: tuple[int, int, int]) -> socket.socket:
    """Return a bound socket that does not listen yet. `options` are `setsockopt` arguments, set before the bind.
    Raises OSError if the address cannot be bound."""
    every = host == EVERY
    if every and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if ":" in host:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not every)
        for option in options:
            listener.setsockopt(*option)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener
