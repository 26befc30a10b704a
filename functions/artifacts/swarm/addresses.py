"""Validate addresses of peers: `<ip>:<port>` literals that a node can have.

A node announces where it serves, and others connect there with the installation's token. So host names (which can
resolve to anything later), schemes and paths are rejected. Rejected networks: link-local (a cloud's metadata service
is 169.254.169.254), cloud services elsewhere, multicast, unspecified, and IPv6 that wraps an IPv4 address. Loopback
serves one-machine fleets: it is accepted only if the receiver is on loopback too. The networks are listed here
because `ipaddress` classifies some differently from one Python to the next: ::ffff:127.0.0.1 is loopback from 3.13
on.
"""

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

ADDRESS_MAX_CHARS = 64
_V4 = re.compile(r"(?P<host>[0-9.]{7,15}):(?P<port>[1-9][0-9]{0,4})")
_V6 = re.compile(r"\[(?P<host>[0-9a-f:.]{2,45})\]:(?P<port>[1-9][0-9]{0,4})")

_LOOPBACK = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))
_NO_NODES = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "100.100.100.200/32",  # metadata at Alibaba
        "168.63.129.16/32",  # metadata at Azure
        "169.254.0.0/16",  # link-local
        "224.0.0.0/3",  # multicast and reserved
    )
)
_NODES_V6 = (IPv6Network("2000::/3"), IPv6Network("fc00::/7"))
_NO_NODES_V6 = (
    IPv6Network("2001::/32"),  # Teredo
    IPv6Network("2002::/16"),  # 6to4
    IPv6Network("fd00:ec2::/32"),  # metadata, pods' identities and other services at AWS
    IPv6Network("fd20:ce::254/128"),  # metadata at Google
    IPv6Network("fd00:c1::a9fe:a9fe/128"),  # metadata at Oracle
    IPv6Network("fd00:42::42/128"),  # metadata at Scaleway
)


class AddressRefused(ValueError):
    """Raised for an address that a peer cannot have; the text says why."""


def check_address(address: str, *, loopback_allowed: bool) -> str:
    """Return the address `<ip>:<port>` unchanged; raise AddressRefused if it has another form or a peer cannot have
    it."""
    match = None if len(address) > ADDRESS_MAX_CHARS else _V4.fullmatch(address) or _V6.fullmatch(address)
    if match is None or int(match["port"]) > 65535:
        raise AddressRefused(f"{address[:ADDRESS_MAX_CHARS]!r} is not <ip>:<port> (IPv6 in brackets; no host names)")
    try:
        ip = ip_address(match["host"])
    except ValueError as error:
        raise AddressRefused(f"{address}: {error}") from error
    if str(ip) != match["host"]:
        raise AddressRefused(f"{address} is written as {ip}; one address must not have two names")
    if _in_any(ip, _LOOPBACK):
        if not loopback_allowed:
            raise AddressRefused(f"{address} is loopback, but its sender is not")
    elif not can_be_a_node(ip):
        raise AddressRefused(f"{address} is not an address of a node")
    return address


def is_loopback(host: str) -> bool:
    """Return True for a loopback IP literal; False for other text."""
    try:
        return _in_any(ip_address(host.strip("[]")), _LOOPBACK)
    except ValueError:
        return False


def can_be_a_node(ip: IPv4Address | IPv6Address) -> bool:
    """Return True if a node or a pod can have the address; loopback does not count."""
    if isinstance(ip, IPv4Address):
        return not _in_any(ip, (*_NO_NODES, _LOOPBACK[0]))
    return _in_any(ip, _NODES_V6) and not _in_any(ip, _NO_NODES_V6)


def _in_any(ip: IPv4Address | IPv6Address, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    return any(ip in network for network in networks)
