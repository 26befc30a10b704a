"""Several gateways' accounts in one process and virtual time, over a broker that keeps the same buckets in Python."""

import asyncio
from collections.abc import Sequence
from random import Random

from functions.api.ids import TenantId
from functions.api.snapshot import QuotaEntry, QuotaLimits, ServiceClass
from functions.decisions.quota.token_bucket import US_PER_S, TokenBucket
from functions.decisions.request.features import RequestFeatures
from functions.fleet.bus import BusUnavailable
from functions.fleet.quota_leases import MICRO, NO_LIMIT, Grant, Granted, Group, LeaseAnswer, LeaseRequest
from functions.fleet.tasks import Supervised
from functions.gateway.errors import Refused
from functions.gateway.quota.accounts import RequestQuota, TenantQuotas
from functions.gateway.quota.leases import QuotaLeases
from functions.gateway.request.relay import Usage
from tests.gateway.world import Clock

ACME = TenantId("acme")


class Broker:
    """What the script does, once more: for one server that everybody reaches, or nobody while `away`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, int], TokenBucket] = {}
        self._places: dict[str, dict[str, int]] = {}
        self._heard: dict[str, float] = {}
        self.away = False
        self.slow = False

    async def ask(self, gateway_id: str, groups: Sequence[Group]) -> LeaseAnswer:
        if self.away:
            raise BusUnavailable("away")
        if self.slow:
            await asyncio.Event().wait()
        self._heard[gateway_id] = self._clock()
        alive = [name for name, heard_s in self._heard.items() if self._clock() - heard_s < 10.0]
        return LeaseAnswer(len(alive), False, tuple(self._answer(gateway_id, group) for group in groups))

    async def close(self) -> None:
        """Nothing to close."""

    def outstanding(self, account: str, dimension: int) -> int:
        return self._buckets[account, dimension].level // (60 * US_PER_S)

    def _answer(self, gateway_id: str, group: Group) -> Granted:
        wait_us = max((self._wait_us(gateway_id, wish) for wish in group.wishes), default=0) if group.all_or_none else 0
        granted = tuple(self._grant(gateway_id, wish, group.all_or_none, wait_us == 0) for wish in group.wishes)
        return Granted(wait_us == 0, wait_us, granted)

    def _wait_us(self, gateway_id: str, wish: LeaseRequest) -> int:
        others = sum(held for name, held in self._of(wish).items() if name != gateway_id)
        full = wish.places_limit != NO_LIMIT and others + wish.places_held + wish.places_wanted > wish.places_limit
        waits = [
            self._bucket(wish, at).wait_us(max(0, rate.wanted_micro) * rate.period_s)
            for at, rate in enumerate(wish.rates)
        ]
        return max([100_000 if full and wish.places_wanted > 0 else 0, *waits])

    def _grant(self, gateway_id: str, wish: LeaseRequest, all_of_it: bool, may: bool) -> Grant:
        places = wish.places_held
        if may and wish.places_limit != NO_LIMIT:
            others = sum(held for name, held in self._of(wish).items() if name != gateway_id)
            free = max(0, wish.places_limit - others - places)
            places = max(0, places + min(wish.places_wanted, free))
            if all_of_it:
                places = max(places, self._of(wish).get(gateway_id, 0))
            self._of(wish)[gateway_id] = places
        amounts, left = [], []
        for at, rate in enumerate(wish.rates):
            bucket = self._bucket(wish, at)
            amount = rate.wanted_micro if may else 0
            if amount > 0 and not all_of_it:
                amount = max(0, min(amount, bucket.headroom // rate.period_s // 2))
            bucket.add(amount * rate.period_s)
            amounts.append(amount)
            left.append(bucket.headroom // rate.period_s)
        return Grant(places, tuple(amounts), tuple(left))

    def _of(self, wish: LeaseRequest) -> dict[str, int]:
        return self._places.setdefault(wish.account, {})

    def _bucket(self, wish: LeaseRequest, at: int) -> TokenBucket:
        rate = wish.rates[at]
        now_us = int(self._clock() * US_PER_S)
        known = self._buckets.get((wish.account, rate.dimension))
        if known is None:
            known = TokenBucket(rate.limit, rate.burst_micro // MICRO, rate.period_s, now_us)
            self._buckets[wish.account, rate.dimension] = known
        known.advance(now_us)
        return known


class Shared:
    """`gateways` of them, each with leases; time passes by `forward`."""

    def __init__(self, gateways: int, **limits: int) -> None:
        self.clock = Clock()
        self.broker = Broker(self.clock)
        self.tasks = Supervised()
        self.quota = QuotaEntry("enterprise", limits=QuotaLimits(**limits))
        self.quotas = [TenantQuotas() for _ in range(gateways)]
        self.leases: list[QuotaLeases] = []
        dice = Random(7)
        for number, quotas in enumerate(self.quotas):
            leases = QuotaLeases(
                self.broker, f"g{number}", clock=self.clock, tasks=self.tasks, dice=dice.random, expected_gateways=2
            )
            quotas.leasing = leases
            self.leases.append(leases)

    async def rounds(self) -> None:
        for leases in self.leases:
            await leases.round()

    async def meet(self) -> None:
        """Every gateway knows of all."""
        await self.rounds()
        await self.rounds()

    async def enters(
        self, gateway: int, output_tokens: int, *, prompt_tokens: int = 1, service_class: ServiceClass = "interactive"
    ) -> RequestQuota | None:
        """One request; None where it was refused."""
        quotas = self.quotas[gateway]
        try:
            entry = quotas.enter(ACME, self.quota, self.clock())
        except Refused:
            return None
        features = RequestFeatures(4, prompt_tokens, False, 4096, output_tokens)
        try:
            if not entry.reserve(features, self.clock(), service_class):
                answered: asyncio.Future[Refused | None] = asyncio.get_running_loop().create_future()
                quotas.ask(entry, self.clock, answered.set_result)
                refused = await answered
                if refused is not None:
                    raise refused
        except Refused:
            entry.leave(self.clock())
            return None
        return entry

    def ends(self, entry: RequestQuota, output_tokens: int, prompt_tokens: int = 1) -> None:
        entry.settle(Usage(prompt_tokens, output_tokens), output_tokens, 0.0, 0.0, self.clock())
        entry.leave(self.clock())
