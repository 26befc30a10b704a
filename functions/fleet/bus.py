"""The fleet bus: heartbeats to everyone who routes, and the gateways' messages about rollouts, pools and prefixes.

A heartbeat is published, for those who listen now, and the last whole one is kept under a key that expires, for those
who start later. Losing the bus loses news, never service: readers keep their last view until silence ages it out.
What gateways have seen of a rollout is published only: they say all of it again every so often. The sessions that they
have pinned are kept too, until the pins run out.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from functions.fleet.heartbeat import Heartbeat


class BusUnavailable(Exception):
    """The bus cannot be reached now; try again later, with backoff."""


class Bus(Protocol):
    async def publish(self, heartbeat: Heartbeat) -> None:
        """Send one heartbeat; BusUnavailable where that fails."""

    def listen(self) -> AsyncIterator[list[bytes]]:
        """First the last whole heartbeat of every replica that is not silent, then messages as they come, undecoded.

        The first list may be empty; none falls between it and the others. A message has a line for each heartbeat or
        pulse (`functions.fleet.heartbeat`). Ends with BusUnavailable when the connection is lost.
        """

    async def close(self) -> None: ...


class RolloutBus(Protocol):
    """What gateways say of rollouts: to the registry (stats) and to each other (pins). Messages are opaque here."""

    async def publish_stats(self, message: bytes) -> None:
        """Send one RolloutHeartbeat; BusUnavailable where that fails."""

    def stats(self) -> AsyncIterator[bytes]:
        """RolloutHeartbeats as they come, undecoded; ends with BusUnavailable when the connection is lost."""

    async def publish_pins(self, message: bytes, ttl_s: float) -> None:
        """Send one PinBatch, and keep it for `ttl_s`; BusUnavailable where that fails."""

    def pins(self) -> AsyncIterator[list[bytes]]:
        """The PinBatches that are kept, then others as they come, undecoded; one may come twice.

        The first list, which may be empty, is all that is kept. Ends with BusUnavailable when the connection is lost.
        """


class SessionBus(Protocol):
    """Which replica has a conversation, as gateways tell each other. Messages are opaque here."""

    async def publish_homes(self, message: bytes, ttl_s: float) -> None:
        """Send one HomeBatch, and keep it for `ttl_s`; BusUnavailable where that fails."""

    def homes(self) -> AsyncIterator[list[bytes]]:
        """The HomeBatches that are kept, then others as they come, undecoded; one may come twice.

        The first list, which may be empty, is all that is kept. Ends with BusUnavailable when the connection is lost.
        """


class PoolBus(Protocol):
    """What gateways say of the pools that they send to, to whoever decides on sizes. Messages are opaque here."""

    async def publish_pools(self, message: bytes) -> None:
        """Send one PoolHeartbeat; BusUnavailable where that fails."""

    def pools(self) -> AsyncIterator[bytes]:
        """PoolHeartbeats as they come, undecoded; ends with BusUnavailable when the connection is lost."""


class NodeBus(Protocol):
    """Which nodes are not ready, from the registry to gateways. Messages are opaque here."""

    async def publish_nodes(self, message: bytes) -> None:
        """Send one NodeNotice; BusUnavailable where that fails."""

    def nodes(self) -> AsyncIterator[bytes]:
        """NodeNotices as they come, undecoded; ends with BusUnavailable when the connection is lost."""


class PrefixBus(Protocol):
    """What replicas have in their KV caches, from agents to gateways, and who wants to know. Messages are opaque."""

    async def publish_prefixes(self, message: bytes) -> None:
        """Send one piece of news; BusUnavailable where that fails."""

    def prefixes(self) -> AsyncIterator[bytes]:
        """News as they come, undecoded; ends with BusUnavailable when the connection is lost."""

    async def ask_prefixes(self, message: bytes) -> None:
        """Send one Ask; BusUnavailable where that fails."""

    def prefix_asks(self) -> AsyncIterator[bytes]:
        """Asks as they come, undecoded; ends with BusUnavailable when the connection is lost."""

    async def close(self) -> None: ...
