"""Which addresses are believed to be peers: `<ip>:<port>` as literals, and only such as a node can have.

A node announces where it serves, and others connect there with the installation's token. So there are no names (which
can be made to resolve anywhere, later), no schemes, no paths; and neither link-local addresses (a cloud's metadata
service is 169.254.169.254), nor the services that clouds have put elsewhere, nor multicast, nor unspecified ones, nor
IPv6 that wraps an IPv4 address. Loopback is for one-machine fleets: it is believed
only from, and by, somebody who is on loopback too.
"""

import ipaddress
import re

ADDRESS_MAX_CHARS = 64
_V4 = re.compile(r"(?P<host>[0-9.]{7,15}):(?P<port>[1-9][0-9]{0,4})")
_V6 = re.compile(r"\[(?P<host>[0-9a-f:.]{2,45})\]:(?P<port>[1-9][0-9]{0,4})")

_SERVICES = frozenset({"fd00:ec2::254", "168.63.129.16", "100.100.100.200"})  # metadata at AWS, Azure, Alibaba


class AddressRefused(ValueError):
    """No address of a peer; the text says why."""


def check_address(address: str, *, loopback_allowed: bool) -> str:
    """The address as it was given; AddressRefused where it is none that a peer can have."""
    match = None if len(address) > ADDRESS_MAX_CHARS else _V4.fullmatch(address) or _V6.fullmatch(address)
    if match is None or int(match["port"]) > 65535:
        raise AddressRefused(f"{address[:ADDRESS_MAX_CHARS]!r} is not <ip>:<port> (IPv6 in brackets; no host names)")
    try:
        ip = ipaddress.ip_address(match["host"])
    except ValueError as error:
        raise AddressRefused(f"{address}: {error}") from error
    if str(ip) != match["host"]:
        raise AddressRefused(f"{address} is written {ip} in full; one address must not have two names")
    if ip.is_loopback:
        if not loopback_allowed:
            raise AddressRefused(f"{address} is loopback, and whoever gave it is not")
        return address
    wraps = isinstance(ip, ipaddress.IPv6Address) and (ip.ipv4_mapped or ip.sixtofour or ip.teredo)
    if (
        wraps
        or match["host"] in _SERVICES
        or ip.is_link_local
        or ip.is_multicast
        or ip.is_unspecified
        or ip.is_reserved
    ):
        raise AddressRefused(f"{address} is no address of a node")
    return address


def is_loopback(host: str) -> bool:
    """Whether an IP literal is loopback; no literal is not."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
