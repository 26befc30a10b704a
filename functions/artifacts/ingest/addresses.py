"""Addresses of the public internet: which may be connected to, and connections pinned to those that were resolved.

A host name is resolved once; every address it resolves to must be allowed, and the connection goes to one of exactly
these, so that a name that answers differently the second time (rebinding) gains nothing. What is special stands here as
a list, since `ipaddress` judges some networks otherwise from one Python to the next: 2002::/16 was global until 3.12.
IPv6 that carries an IPv4 address in a form still in use (mapped, NAT64) is judged by what it carries; the tunnels that
were given up (6to4, Teredo) are refused. Worked example (test_worked_example): 64:ff9b::7f00:1 is NAT64 for 127.0.0.1,
and is refused although its own prefix leads to the internet.
"""

import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, NoReturn

import httpcore

from functions.artifacts.errors import ArtifactRefused, StoreUnavailable
from functions.artifacts.ingest.policy import IngestPolicy

Address = IPv4Address | IPv6Address
Resolver = Callable[[str, int], list[str]]  # host, port -> addresses as text; raises OSError

MAX_ADDRESSES = 16
_NAT64 = IPv6Network("64:ff9b::/96")
_MAPPED = IPv6Network("::ffff:0:0/96")
_GLOBAL_UNICAST = IPv6Network("2000::/3")
# Every network of IANA's special-purpose registries, also those that it calls reachable: nobody publishes models there.
_SPECIAL_V4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carriers' NAT, and one cloud's metadata
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # in no registry: one cloud's host agent, seen from inside every machine there
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
# Those within 2000::/3; all outside of it is refused anyway, but for the two forms that are judged by what they carry.
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
        raise ArtifactRefused(f"{host} resolves to {text[:60]!r}, which is no address") from error


class Watch:
    """The time that one ingest may take from its host. `request()` begins an answer, `answered()` ends its head."""

    def __init__(self, policy: IngestPolicy, clock: Callable[[], float]) -> None:
        self._policy, self._clock = policy, clock
        self._ends_s = clock() + policy.deadline_s
        self._head_by_s = self._ends_s
        self._began_s = clock()
        self._received_bytes = 0

    def request(self) -> None:
        self._began_s = self._clock()
        self._head_by_s = self._began_s + self._policy.connect_timeout_s + self._policy.read_timeout_s
        self._received_bytes = 0

    def answered(self) -> None:
        self._head_by_s = self._ends_s

    def wait_s(self, wanted_s: float | None) -> float:
        """How long one operation may block; httpcore.ReadTimeout when no time is left."""
        left_s = min(self._ends_s, self._head_by_s) - self._clock()
        if left_s <= 0:
            raise httpcore.ReadTimeout("the host takes too long")
        return left_s if wanted_s is None else min(wanted_s, left_s)

    def received(self, count: int) -> None:
        """Account for bytes that came; httpcore.ReadTimeout when they come too slowly."""
        self._received_bytes += count
        elapsed_s = self._clock() - self._began_s
        if elapsed_s > self._policy.rate_grace_s and self._received_bytes < self._policy.min_bytes_per_s * elapsed_s:
            raise httpcore.ReadTimeout(
                f"the host delivers {self._received_bytes / elapsed_s:.0f} bytes/s; "
                f"at least {self._policy.min_bytes_per_s:.0f} are expected"
            )


class PinnedBackend(httpcore.NetworkBackend):
    """Connects to the given addresses only, in their order.

    httpcore asks for `host:port` and gets a connection to one of the pinned addresses; TLS still verifies the host's
    name. Every wait is cut to what is left of the deadline, and a host that delivers below the agreed average is given
    up, wherever in an answer it drips (handshake, headers, chunk sizes, body).
    """

    def __init__(self, addresses: Sequence[IPv4Address | IPv6Address], watch: Watch) -> None:
        self._addresses, self._watch = tuple(addresses), watch
        self._network = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        refused: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in self._addresses:
            try:
                stream = self._network.connect_tcp(
                    str(address), port, self._watch.wait_s(timeout), local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                refused = error
            else:
                return _WatchedStream(stream, self._watch)
        raise refused

    def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> NoReturn:
        raise httpcore.ConnectError("only the network is reached from here")


class _WatchedStream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream, watch: Watch) -> None:
        self._stream, self._watch = stream, watch

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        block = self._stream.read(max_bytes, self._watch.wait_s(timeout))
        self._watch.received(len(block))
        return block

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._watch.wait_s(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _WatchedStream(
            self._stream.start_tls(ssl_context, server_hostname, self._watch.wait_s(timeout)), self._watch
        )

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
