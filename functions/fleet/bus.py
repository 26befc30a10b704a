"""The fleet bus: how heartbeats reach everyone who routes.

A beat is published to the channel, for those who listen now, and kept under a key that expires, for those who start
later. Losing the bus loses news, never service: readers keep their last view until silence ages it out.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from functions.fleet.heartbeat import Heartbeat


class BusUnavailable(Exception):
    """The bus cannot be reached now; try again later, with backoff."""


class Bus(Protocol):
    async def publish(self, heartbeat: Heartbeat) -> None:
        """Send one beat; BusUnavailable where that fails."""

    async def latest(self) -> list[bytes]:
        """The last beat of every replica that is not silent, undecoded."""

    def listen(self) -> AsyncIterator[bytes]:
        """Beats as they come, undecoded; ends with BusUnavailable when the connection is lost."""

    async def close(self) -> None: ...
