"""Interface of the fleet bus: heartbeats for all routers, and gateways' messages about rollouts, pools and prefixes.

A heartbeat is published for current listeners. The last whole one is also stored under a key that expires, for
processes that start later. Losing the bus loses updates, never service: readers keep their last view until silence
expires it. Rollout statistics are only published, because gateways repeat all of them periodically. Session pins are
also stored until they expire.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from functions.fleet.heartbeat import Heartbeat


class BusUnavailable(Exception):
    """The bus cannot be reached now; try again later, with backoff."""


class Bus(Protocol):
    async def publish(self, heartbeat: Heartbeat) -> None:
        """Send one heartbeat; BusUnavailable if that fails."""

    def listen(self) -> AsyncIterator[list[bytes]]:
        """Yield the last whole heartbeat of every replica that is not silent, then messages as they arrive,
        undecoded.

        The first list may be empty; no message is lost between it and the others. A message has a line for each
        heartbeat or pulse (`functions.fleet.heartbeat`). Ends with BusUnavailable when the connection is lost.
        """

    async def close(self) -> None: ...


class RolloutBus(Protocol):
    """Messages of gateways about rollouts: stats for the registry and pins for other gateways. They are opaque here."""

    async def publish_stats(self, message: bytes) -> None:
        """Send one RolloutHeartbeat; BusUnavailable if that fails."""

    def stats(self) -> AsyncIterator[bytes]:
        """Yield RolloutHeartbeats as they arrive, undecoded; ends with BusUnavailable when the connection is lost."""

    async def publish_pins(self, message: bytes, ttl_s: float) -> None:
        """Send one PinBatch and store it for `ttl_s`; BusUnavailable if that fails."""

    def pins(self) -> AsyncIterator[list[bytes]]:
        """Yield the stored PinBatches, then others as they arrive, undecoded; one may be yielded twice. The first
        list has all stored batches and may be empty. Ends with BusUnavailable when the connection is lost."""


class SessionBus(Protocol):
    """Messages between gateways on which replica has a conversation. They are opaque here."""

    async def publish_homes(self, message: bytes, ttl_s: float) -> None:
        """Send one HomeBatch and store it for `ttl_s`; BusUnavailable if that fails."""

    def homes(self) -> AsyncIterator[list[bytes]]:
        """Yield the stored HomeBatches, then others as they arrive, undecoded; one may be yielded twice. The first
        list has all stored batches and may be empty. Ends with BusUnavailable when the connection is lost."""


class PoolBus(Protocol):
    """Messages of gateways about the pools that they use, for autoscaling. They are opaque here."""

    async def publish_pools(self, message: bytes) -> None:
        """Send one PoolHeartbeat; BusUnavailable if that fails."""

    def pools(self) -> AsyncIterator[bytes]:
        """Yield PoolHeartbeats as they arrive, undecoded; ends with BusUnavailable when the connection is lost."""


class NodeBus(Protocol):
    """Messages from the registry to gateways about nodes that are not ready. They are opaque here."""

    async def publish_nodes(self, message: bytes) -> None:
        """Send one NodeNotice; BusUnavailable if that fails."""

    def nodes(self) -> AsyncIterator[bytes]:
        """Yield NodeNotices as they arrive, undecoded; ends with BusUnavailable when the connection is lost."""


class PrefixBus(Protocol):
    """Messages about replicas' KV caches: updates from agents and requests from gateways. They are opaque here."""

    async def publish_prefixes(self, message: bytes) -> None:
        """Send one update of a replica's cached blocks; BusUnavailable if that fails."""

    def prefixes(self) -> AsyncIterator[bytes]:
        """Yield updates of replicas' cached blocks as they arrive, undecoded; ends with BusUnavailable when the
        connection is lost."""

    async def publish_prefix_request(self, message: bytes) -> None:
        """Send one PrefixRequest; BusUnavailable if that fails."""

    def prefix_requests(self) -> AsyncIterator[bytes]:
        """Yield PrefixRequests as they arrive, undecoded; ends with BusUnavailable when the connection is lost."""

    async def close(self) -> None: ...
