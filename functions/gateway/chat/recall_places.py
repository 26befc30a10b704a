"""How many of one tenant's conversations are read at a time: the connections to where they lie are everybody's.

    at most PLACES of a tenant's; who finds none free waits for at most WAIT_S, in the order of coming

Whoever has a place may be refused for its tenant's quota before anything is read: behind others of its tenant it may
have waited until there was none left.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from functions.api.ids import TenantId
from functions.gateway.errors import Refused, unavailable

PLACES = 8  # a fourth of the connections (`conversation_store.MAX_CONNECTIONS`)
WAIT_S = 2.0  # a bus that is well gives a conversation in a millisecond


class RecallPlaces:
    """Owned by one event loop. Bounded by the requests that are under way."""

    def __init__(self, wait_s: float = WAIT_S) -> None:
        self._wait_s = wait_s
        self._lines: dict[TenantId, _Line] = {}

    @asynccontextmanager
    async def taken(self, tenant: TenantId) -> AsyncIterator[None]:
        """Raises Refused (503) where none comes free in time."""
        line = self._lines.setdefault(tenant, _Line())
        line.users += 1
        try:
            await self._enter(line)
            try:
                yield
            finally:
                line.places.release()
        finally:
            line.users -= 1
            if not line.users:
                del self._lines[tenant]

    async def _enter(self, line: "_Line") -> None:
        try:
            async with asyncio.timeout(self._wait_s):
                await line.places.acquire()
        except TimeoutError as error:
            message = f"{PLACES} conversations of yours are being read, which is as many as may be. Try again shortly."
            raise Refused(unavailable(message, "conversation_unavailable", 1)) from error

    def __len__(self) -> int:
        return len(self._lines)


class _Line:
    """One tenant's."""

    __slots__ = ("places", "users")

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(PLACES)
        self.users = 0
