"""Whether an address may be connected to: only the public internet's unicast, whatever form it hides in.

A host name is resolved once; every address it resolves to must be allowed, and the connection goes to one of exactly
these, so that a name that answers differently the second time (rebinding) gains nothing. IPv6 forms that carry an IPv4
address (mapped, 6to4, Teredo, NAT64, compatible) are judged by what they carry as well. Worked example
(test_worked_example): 64:ff9b::7f00:1 is NAT64 for 127.0.0.1, and is refused although its own prefix is global.
"""

import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from functions.artifacts.errors import ArtifactRefused, StoreUnavailable

Address = IPv4Address | IPv6Address
Resolver = Callable[[str, int], list[str]]  # host, port -> addresses as text; raises OSError

MAX_ADDRESSES = 16
_NAT64 = IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST = IPv6Network("2000::/3")
# Ranges that count as global in some tables and lead somewhere special all the same.
_SPECIAL = (
    IPv4Network("192.0.0.0/24"),  # protocol assignments
    IPv4Network("192.88.99.0/24"),  # 6to4 relays
    IPv4Network("168.63.129.16/32"),  # one cloud's host agent, seen from inside every machine there
    IPv6Network("3fff::/20"),  # documentation
)


def system_resolver(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def resolve(
    host: str, port: int, resolver: Resolver, networks: tuple[IPv4Network | IPv6Network, ...]
) -> tuple[Address, ...]:
    """The addresses of `host`, all of them allowed; ArtifactRefused names the first that is not."""
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
    """Whether `address` is global unicast, or lies in a network that the operator named."""
    if any(address in network for network in networks):
        return True
    if isinstance(address, IPv4Address):
        return _is_public(address)
    carried = _carried(address)
    if address.scope_id is not None or not all(is_allowed(inner, networks) for inner in carried):
        return False
    if address.ipv4_mapped is not None or address in _NAT64:
        return True
    return address in _GLOBAL_UNICAST and _is_public(address)


def _is_public(address: Address) -> bool:
    special = address.is_multicast or address.is_reserved or any(address in network for network in _SPECIAL)
    return address.is_global and not special


def _carried(address: IPv6Address) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses that packets to this one would end at, as far as its form says."""
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        found.append(IPv4Address(int(address) & 0xFFFF_FFFF))
    return tuple(inner for inner in found if inner is not None)


def _parse(text: str, host: str) -> Address:
    try:
        return ip_address(text)
    except ValueError as error:
        raise ArtifactRefused(f"{host} resolves to {text[:60]!r}, which is no address") from error
