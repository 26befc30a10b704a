"""Several gateways' accounts in one process and virtual time, on a broker that implements the bus's buckets in
Python."""

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from functions.api.ids import TenantId
from functions.api.snapshot import QuotaEntry, QuotaLimitsPart, ServiceClass
from functions.decisions.quota.token_bucket import US_PER_S
from functions.decisions.request.features import RequestFeatures
from functions.fleet.bus import BusUnavailable
from functions.fleet.quota_leases import MICRO, NO_LIMIT, Group, LeaseAnswer, LeaseRequest, RateRequest
from functions.fleet.quota_model import QuotaModel
from functions.fleet.tasks import Supervised
from functions.gateway.errors import OverQuota, RequestRejected
from functions.gateway.quota.accounts import RequestQuota, TenantQuotas
from functions.gateway.quota.leases import QuotaLeases
from functions.gateway.request.answers import Usage
from tests.gateway.rig import Clock

ACME = TenantId("acme")


class Broker:
    """Model of the bus's script for one server, which all gateways reach unless it is `away`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.script = QuotaModel()
        self.script.request_leases("", (), self._now_us() - 60 * US_PER_S)  # the bus has run for a while
        self.away = False
        self.slow = False
        self.lag_s = 0.0  # round-trip time of a call, half of it on the way to the bus

    async def request_leases(self, gateway_id: str, groups: Sequence[Group]) -> LeaseAnswer:
        if self.away:
            raise BusUnavailable("away")
        if self.slow:
            await asyncio.Event().wait()
        if not self.lag_s:
            return self.script.request_leases(gateway_id, groups, self._now_us())
        await asyncio.sleep(self.lag_s / 2)
        answer = self.script.request_leases(gateway_id, groups, self._now_us())
        await asyncio.sleep(self.lag_s / 2)
        return answer

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def restart(self) -> None:
        """Forget all state, like a restarted bus."""
        self.script = QuotaModel()

    def outstanding(self, account: str, dimension: int, limit: int, burst: int) -> int:
        """Return the tokens that the bus counts as used."""
        rate = RateRequest(dimension, limit, burst * MICRO, 60, 0, 1)
        asked = self.script.request_leases(
            "", [Group(False, (LeaseRequest(account, NO_LIMIT, 0, 0, (rate,)),))], self._now_us()
        )
        return burst - asked.granted[0].grants[0].left_micro[0] // MICRO

    def _now_us(self) -> int:
        return int(self._clock() * US_PER_S)


class Shared:
    """Gateways with leases, `gateways` of them. Time advances with `forward`, or follows the clock given."""

    def __init__(self, gateways: int, now: Callable[[], float] | None = None, **limits: int) -> None:
        self.clock = Clock()
        self.now = now or self.clock
        self.broker = Broker(self.now)
        self.tasks = Supervised()
        self.quota = QuotaEntry("enterprise", limits=QuotaLimitsPart(**limits))
        self.quotas = [TenantQuotas() for _ in range(gateways)]
        self.leases: list[QuotaLeases] = []
        self.retry_after_s = 0.0  # value of the last rejection
        self._joined = 0
        rng = Random(7)
        for quotas in self.quotas:
            self._lease(quotas, rng, expected_gateways=2)

    def join(self) -> None:
        """Add a gateway that has just started."""
        self.quotas.append(TenantQuotas())
        self._lease(self.quotas[-1], Random(len(self.quotas)), expected_gateways=1)

    def leave(self, gateway: int) -> None:
        """Remove a gateway with all that it holds."""
        del self.quotas[gateway], self.leases[gateway]

    def _lease(self, quotas: TenantQuotas, rng: Random, expected_gateways: int) -> None:
        self._joined += 1
        quotas.leasing = leases = QuotaLeases(
            self.broker,
            f"g{self._joined}",
            clock=self.now,
            tasks=self.tasks,
            uniform=rng.random,
            expected_gateways=expected_gateways,
        )
        self.leases.append(leases)

    async def rounds(self) -> None:
        for leases in self.leases:
            await leases.round()

    async def meet(self) -> None:
        """Run rounds until every gateway knows all others."""
        await self.rounds()
        await self.rounds()

    async def enters(
        self, gateway: int, output_tokens: int, *, prompt_tokens: int = 1, service_class: ServiceClass = "interactive"
    ) -> RequestQuota | None:
        """Enter one request; return None if it was rejected."""
        quotas = self.quotas[gateway]
        try:
            entry = quotas.enter(ACME, self.quota, self.now())
        except RequestRejected as refused:
            self._was_told(refused)
            return None
        features = RequestFeatures(4, prompt_tokens, False, 4096, output_tokens)
        try:
            if not entry.reserve(features, self.now(), service_class):
                answered: asyncio.Future[RequestRejected | None] = asyncio.get_running_loop().create_future()
                quotas.request_missing(entry, self.now, answered.set_result)
                refused = await answered
                if refused is not None:
                    raise refused
        except RequestRejected as refused:
            self._was_told(refused)
            entry.leave(self.now())
            return None
        return entry

    def _was_told(self, refused: RequestRejected) -> None:
        if isinstance(refused, OverQuota):
            self.retry_after_s = int(dict(refused.headers)[b"retry-after-ms"]) / 1000.0

    def ends(self, entry: RequestQuota, output_tokens: int, prompt_tokens: int = 1) -> None:
        entry.settle(Usage(prompt_tokens, output_tokens), output_tokens, 0.0, 0.0, self.now())
        entry.leave(self.now())
