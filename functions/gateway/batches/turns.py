"""When a batch's next line may be asked: the batch's pace, the tenant's concurrency and the gateway's places agree.

Half of what a tenant may have under way at a time is left to its own calls. Lines take their turn in the order in which
they asked for it; the one in front looks again whenever a line ends, and ten times a second.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from functions.api.ids import TenantId
from functions.decisions.batch_pace import BatchPace
from functions.gateway.batches.places import LinePlaces
from functions.gateway.core import Gateway

_LOOK_S = 0.1


class Turns:
    """Of one run."""

    def __init__(
        self, gateway: Gateway, tenant: TenantId, pace: BatchPace, places: LinePlaces, clock: Callable[[], float]
    ) -> None:
        self._gateway = gateway
        self._tenant = tenant
        self._pace = pace
        self._places = places
        self._clock = clock
        self._front = asyncio.Lock()
        self._ended = asyncio.Event()
        self.in_flight = 0

    @asynccontextmanager
    async def next(self) -> AsyncIterator[None]:
        """Begins when a line may be asked; ends when it was answered."""
        async with self._front:
            while not self._may():
                self._ended.clear()
                try:
                    async with asyncio.timeout(_LOOK_S):
                        await self._ended.wait()
                except TimeoutError:
                    continue
            self.in_flight += 1
        try:
            with self._places.taken(self._tenant):
                yield
        finally:
            self.in_flight -= 1
            self._ended.set()

    def _may(self) -> bool:
        return self._pace.may_begin(self.in_flight, self._clock()) and self._places.is_free(self._tenant, self._share())

    def _share(self) -> int:
        catalogue = self._gateway.catalogue
        quota = catalogue.quota_of(self._tenant) if catalogue is not None else None
        most = quota.limits.concurrent_requests if quota is not None else None
        return max(1, most // 2) if most is not None else self._places.most
