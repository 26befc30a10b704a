"""Decide which addresses belong to the public internet, in any notation.

A host name is resolved once. Every resulting address must be allowed, and the connection goes to one of exactly
these, so DNS rebinding gains nothing. Special networks are listed here because `ipaddress` classifies some of them
differently from one Python to the next: 2002::/16 was global until 3.12. IPv6 that embeds an IPv4 address in a form
still in use (mapped, NAT64) is judged by the embedded address; obsolete tunnels (6to4, Teredo) are rejected. Worked
example (test_worked_example): 64:ff9b::7f00:1 is NAT64 for 127.0.0.1, and is rejected although its own prefix leads
to the internet.
"""

import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from functions.artifacts.errors import ArtifactRefused, StoreUnavailable

Address = IPv4Address | IPv6Address
Resolver = Callable[[str, int], list[str]]  # host, port -> addresses as text; raises OSError

MAX_ADDRESSES = 16
_NAT64 = IPv6Network("64:ff9b::/96")
_MAPPED = IPv6Network("::ffff:0:0/96")
_GLOBAL_UNICAST = IPv6Network("2000::/3")
# Every network of IANA's special-purpose registries, even those that are globally reachable: no models are there.
_SPECIAL_V4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carriers' NAT, and one cloud's metadata
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # in no registry: the host agent of one cloud, reachable from every machine there
        "169.254.0.0/16",  # link-local, and most clouds' metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # multicast tunnels
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
# Networks within 2000::/3. Other IPv6 is rejected, except for the two forms that are judged by the embedded address.
_SPECIAL_V6 = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID, AS112, drones
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)


def system_resolver(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def resolve(
    host: str, port: int, resolver: Resolver, networks: tuple[IPv4Network | IPv6Network, ...]
) -> tuple[Address, ...]:
    """Return the IP addresses of `host`. Raise ArtifactRefused with the first that is not allowed, StoreUnavailable if
    the host cannot be resolved or has more than MAX_ADDRESSES."""
    try:
        texts = resolver(host, port)
    except OSError as error:
        raise StoreUnavailable(f"{host} cannot be resolved: {error.strerror or error}") from error
    if not 1 <= len(texts) <= MAX_ADDRESSES:
        raise StoreUnavailable(f"{host} has {len(texts)} addresses; 1 to {MAX_ADDRESSES} are followed")
    addresses = tuple(_parse(text, host) for text in texts)
    for address in addresses:
        if not is_allowed(address, networks):
            raise ArtifactRefused(f"{host} resolves to {address}, which is not an address of the public internet")
    return addresses


def is_allowed(address: Address, networks: tuple[IPv4Network | IPv6Network, ...] = ()) -> bool:
    """Return True if `address` is global unicast or lies in a network that the operator allowed. IPv6 addresses that
    embed an IPv4 one are judged by that one."""
    if any(address in network for network in networks):
        return True
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _SPECIAL_V4)
    if address.scope_id is not None:
        return False
    if address in _MAPPED or address in _NAT64:
        return is_allowed(IPv4Address(int(address) & 0xFFFF_FFFF), networks)
    return address in _GLOBAL_UNICAST and not any(address in network for network in _SPECIAL_V6)


def _parse(text: str, host: str) -> Address:
    try:
        return ip_address(text)
    except ValueError as error:
        raise ArtifactRefused(f"{host} resolves to {text[:60]!r}, which is not an IP address") from error
