"""One batch of a tenant's is made at a time in a gateway: who counts and then makes one is not overtaken between.

The others wait in their order, and few of them: making one takes the store some ten calls. What several gateways make
at once is counted by their markers (`BatchLog.open`).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from functions.gateway.errors import ErrorAnswer, Refused


class Creations:
    """Owned by one event loop."""

    def __init__(self, most_per_tenant: int) -> None:
        self._most = most_per_tenant
        self._turns: dict[str, _Turn] = {}

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Raises Refused (429) where as many wait already as may."""
        turn = self._turns.setdefault(tenant, _Turn())
        if turn.users >= self._most:
            message = f"{self._most} batches of yours are being made. Wait for one to be made."
            raise Refused(ErrorAnswer(429, "requests", "too_many_batches", message, retry_after_s=1))
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[tenant]

    def __len__(self) -> int:
        return len(self._turns)


class _Turn:
    """One tenant's."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
