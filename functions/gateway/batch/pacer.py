"""Pacer of a batch's lines: combines the batch's pace, the tenant's concurrency and the gateway's slots.

Memory is reserved for the answer of each line in flight, as large as the largest answer of this batch so far: 32
answers of 32 MiB would be a GiB. The first few lines start before that is known, at most as many as a batch begins
with. Each answer lowers the expected size by 2 %: one of 30 MiB counts as 15 after 35 shorter ones, and as 1 after
168. (test_large_answers_limit_concurrent_lines, test_one_large_answer_stops_limiting_after_35_small_ones)

Half of a tenant's concurrent requests, over all gateways, are left to its own calls. A batch runs on one gateway, so
at most as many gateways send lines of a tenant as it has open batches (by the last scan):

    lines of a tenant at this gateway <= max(1, concurrent_requests // 2 // min(gateways, its open batches))

Worked example (test_batch_lines_leave_half_of_concurrency_to_calls_across_gateways): with a
limit of 64 and eight gateways, one batch gets 32 lines, each of two gets 16, and each of eight or more gets four.

Lines start in order of arrival. The first one checks again whenever a line ends, and ten times a second.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from functions.api.ids import TenantId
from functions.decisions.batch.pace import BatchPace
from functions.gateway.services import Services
from functions.gateway.tenant_limits import TenantShares

_LOOK_S = 0.1
_STAYS_RATIO = 0.98


class LinePacer:
    def __init__(
        self,
        services: Services,
        tenant: TenantId,
        pace: BatchPace,
        *,
        slots: TenantShares,
        answers: TenantShares,
        open_batches: Counter[str],
        clock: Callable[[], float],
    ) -> None:
        """`open_batches`: number of open batches by tenant, at all gateways."""
        self._services = services
        self._tenant = tenant
        self._pace = pace
        self._slots = slots
        self._answers = answers
        self._open_batches = open_batches
        self._clock = clock
        self._front = asyncio.Lock()
        self._ended = asyncio.Event()
        self._largest_bytes = 0
        self.in_flight = 0

    def record_answer_size(self, size_bytes: int) -> None:
        """Record the size of a line's answer; the largest size, which decays, is what a line in flight reserves."""
        self._largest_bytes = max(size_bytes, int(self._largest_bytes * _STAYS_RATIO))

    @asynccontextmanager
    async def next_turn(self) -> AsyncIterator[None]:
        """Wait until a line may be sent, then hold its slot and room for its answer until the context ends."""
        async with self._front:
            while not self._may_send():
                self._ended.clear()
                try:
                    async with asyncio.timeout(_LOOK_S):
                        await self._ended.wait()
                except TimeoutError:
                    continue
            self.in_flight += 1
        try:
            with self._slots.reserved(self._tenant), self._answers.reserved(self._tenant, self._largest_bytes):
                yield
        finally:
            self.in_flight -= 1
            self._ended.set()

    def _may_send(self) -> bool:
        return (
            self._pace.may_begin(self.in_flight, self._clock())
            and self._slots.is_free(self._tenant, own_most=self._share())
            and (not self.in_flight or self._answers.is_free(self._tenant, self._largest_bytes))
        )

    def _share(self) -> int:
        catalogue = self._services.state.catalogue
        quota = catalogue.quota_of(self._tenant) if catalogue is not None else None
        most = quota.limits.concurrent_requests if quota is not None else None
        if most is None:
            return self._slots.most
        leasing = self._services.quotas.leasing
        gateways = leasing.gateways if leasing is not None else 1
        return max(1, most // 2 // min(gateways, max(1, self._open_batches[self._tenant])))
