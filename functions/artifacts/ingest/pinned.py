"""Connections of httpcore to pinned addresses, with limits on slowness.

httpcore requests `host:port` and gets a connection to one of the pinned addresses; TLS still verifies the host's
name. Every wait is limited to the rest of the deadline. A host that delivers below the agreed average rate is
abandoned in any part of an answer (handshake, headers, chunk sizes, body).
"""

import ssl
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Any, NoReturn

import httpcore

from functions.artifacts.ingest.policy import IngestPolicy


class Watch:
    """Time limits of one ingest's host. Call `request()` when a request starts, `answered()` after the answer's
    headers."""

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
        """Return the seconds that one operation may block: `wanted_s` (None: no limit of its own), or the time left if
        that is less. Raise httpcore.ReadTimeout if no time is left."""
        left_s = min(self._ends_s, self._head_by_s) - self._clock()
        if left_s <= 0:
            raise httpcore.ReadTimeout("the host takes too long")
        return left_s if wanted_s is None else min(wanted_s, left_s)

    def received(self, count: int) -> None:
        """Count received bytes; raise httpcore.ReadTimeout if the average rate is below the policy's minimum after its
        grace period."""
        self._received_bytes += count
        elapsed_s = self._clock() - self._began_s
        if elapsed_s > self._policy.rate_grace_s and self._received_bytes < self._policy.min_bytes_per_s * elapsed_s:
            raise httpcore.ReadTimeout(
                f"the host delivers {self._received_bytes / elapsed_s:.0f} bytes/s; "
                f"at least {self._policy.min_bytes_per_s:.0f} are expected"
            )


class PinnedBackend(httpcore.NetworkBackend):
    """Connects to the given addresses only, in their order, and watches the streams."""

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
