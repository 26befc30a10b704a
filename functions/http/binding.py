"""Sockets that listen, bound before anything else starts, so that a port that is taken is said at once.

    10.0.0.7, fd00::7, localhost    that address
    0.0.0.0                         every address of IPv4
    ::                              every address of both families, so that a pod's manifests are the same whatever
                                    its cluster speaks; of IPv4 alone where the kernel has no IPv6

A caller by IPv4 comes to the last as ::ffff:10.0.0.7: whoever judges a caller's address looks at the one inside.
"""

import socket

EVERY = "::"


def bound(host: str, port: int, *options: tuple[int, int, int]) -> socket.socket:
    """Not yet listening; `options` as setsockopt has them, set before the bind. OSError where that cannot be."""
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
