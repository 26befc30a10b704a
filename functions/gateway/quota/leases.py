"""Leases of limits that several gateways share: rounds that request ahead, and requests at once.

    each 250 ms +- 10 %     what every account in use wants, in as few calls as it takes; else each second
    a request finds none    one call for all that wait; after 20 ms without an answer they wait no longer
    no answer               `quota_outage` says how limits hold meanwhile; the log and a metric say so

While this is the only gateway that the bus knows, nothing is leased: it keeps limits exactly by itself.

An answer that takes longer than 20 ms lets a request come on credit while its account owes less than a gateway's share
of a fourth of the burst. The bus shares out the other three, so that a bus that is slow costs nothing of the bound:

    granted at once + credit of all gateways <= 3/4 burst + gateways x burst / (4 x gateways) = burst

Of requests a minute the bus shares out the whole burst: credit there is a share of what it had left when it last said
so, and none where that was nothing (`test_quota_slow_bus`).

What an account owes is asked for by one call at a time; requests of other calls wait for that call's answer, too
(test_a_burst_of_several_calls_asks_for_its_debt_once).

Neighbours: `functions.decisions.quota.lease` decides what to ask for, `functions.fleet.quota_leases` carries it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Literal, get_args

from functions.decisions.quota.account import QuotaAccount, fit
from functions.decisions.quota.dimensions import OverLimit
from functions.decisions.quota.lease import ROUND_JITTER_RATIO, ROUND_S
from functions.decisions.quota.outage import Regime, regime_of
from functions.decisions.quota.token_bucket import US_PER_S
from functions.fleet.bus import BusUnavailable
from functions.fleet.quota_leases import Group, LeaseAnswer, LeaseRequest, QuotaBroker
from functions.fleet.tasks import Supervised
from functions.gateway.quota.accounts import RequestQuota
from functions.gateway.quota.lease_requests import (
    is_asked,
    judged_here,
    missing,
    owed,
    places_of,
    request_of_round,
    take_asked,
    take_round,
)

_log = logging.getLogger(__name__)
ASK_S = 0.02
_ROUND_TIMEOUT_S = 1.0
_ACCOUNTS_PER_CALL = 128  # 2 ms of the server's time
_ASKS_PER_CALL = 64
_MAX_CALLS = 4  # at once: a slow one must not keep the rest from asking
_MAX_WAITING = 4096
_OTHERS_FOLLOW_S = 2.0  # several rounds: who finds the bus again first is not alone for that
AskOutcome = Literal["granted", "denied", "slow"]
Done = Callable[[OverLimit | None], None]
_Debt = asyncio.Future[dict[str, OverLimit]]  # by account: why what it owed was not granted


class QuotaLeases:
    """Owned by one event loop."""

    def __init__(
        self,
        broker: QuotaBroker,
        gateway_id: str,
        *,
        clock: Callable[[], float],
        tasks: Supervised,
        uniform: Callable[[], float],
        expected_gateways: int = 1,
    ) -> None:
        """`expected_gateways` share the limits until the bus is reached for the first time."""
        self._broker = broker
        self._gateway_id = gateway_id
        self._clock = clock
        self._tasks = tasks
        self._uniform = uniform
        self.asks: dict[str, int] = dict.fromkeys(get_args(AskOutcome), 0)
        self.gateways = expected_gateways
        self._lost_s: float | None = None  # since when; None: in touch, or not yet
        self._found_again_s: float | None = None
        self._was_reached = False
        self._bus_is_new = False
        self._bus_knows = True  # what was spent here before this regime
        self._active: dict[str, QuotaAccount] = {}
        self._waiting: list[_Pending] = []
        self._calls = 0  # to the bus, under way
        self._debts: dict[str, _Debt] = {}  # by account: what one of these calls asks for
        self.regime = Regime("share", expected_gateways)

    def expect(self, gateways: int) -> None:
        """As many share the limits, by whoever else knows; until the bus is reached, which knows better."""
        if not self._was_reached:
            self.gateways = gateways
            self._switch(Regime("share", gateways))

    # asked by accounts

    def fit(self, key: str, account: QuotaAccount, now_us: int) -> None:
        if account.regime is self.regime:
            return
        fit(account, self.regime, now_us, bus_knows=self._bus_knows)
        if self.regime.step == "leased" and (account.limited or account.slots is not None):
            self._active[key] = account

    def ask(self, entry: RequestQuota, done: Done) -> None:
        pending = _Pending(entry, done)
        if len(self._waiting) >= _MAX_WAITING:
            self._judge(pending)
            return
        asyncio.get_running_loop().call_later(ASK_S, self._judge, pending)
        self._waiting.append(pending)
        if self._calls < _MAX_CALLS:
            self._calls += 1
            self._tasks.once("quota asks", self._ask_waiting())

    # rounds

    async def run(self) -> None:
        while True:
            await self.round()
            await asyncio.sleep(ROUND_S * (1.0 + ROUND_JITTER_RATIO * (2.0 * self._uniform() - 1.0)))

    async def round(self) -> None:
        """Tell that this gateway lives, and have what its accounts want.

        Each call has its time, not the round: a bus that has much to do makes rounds longer, and is not lost.
        """
        try:
            now_us = self._now_us()
            requests = iter(self._requests(now_us) if self.regime.step == "leased" else [])
            await self._round_of(list(islice(requests, _ACCOUNTS_PER_CALL)), now_us)
            while chunk := list(islice(requests, _ACCOUNTS_PER_CALL)):
                await self._round_of(chunk, now_us)
        except (BusUnavailable, TimeoutError) as error:
            self._lost(str(error) or "no answer in time")

    def _requests(self, now_us: int) -> Iterator[LeaseRequest]:
        """Of the accounts in use, each as its call is made; most that are used now and then want nothing."""
        for key in tuple(self._active):
            account = self._active.get(key)
            if account is not None:
                request = request_of_round(key, account, now_us)
                if is_asked(account, request, now_us):
                    yield request

    async def _round_of(self, requests: list[LeaseRequest], now_us: int) -> None:
        async with asyncio.timeout(_ROUND_TIMEOUT_S):
            answer = await self._broker.ask(self._gateway_id, [Group(False, (request,)) for request in requests])
        if self.regime.step == "leased":  # nobody has lost touch meanwhile
            for request, granted in zip(requests, answer.granted, strict=True):
                account = self._active.get(request.account)
                if account is None:
                    continue
                take_round(account, request, granted, self._now_us())
                if account.is_idle(now_us):
                    account.regime = None  # the next request has it fitted, and so active, again
                    del self._active[request.account]
        self._in_touch(answer)

    # asks

    async def _ask_waiting(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_ASKS_PER_CALL], self._waiting[_ASKS_PER_CALL:]
                await self._ask_for([pending for pending in batch if not pending.told])
        finally:
            self._calls -= 1

    async def _ask_for(self, batch: list["_Pending"]) -> None:
        """What comes too late for the request that asked is still this gateway's: the bus has given it."""
        if self.regime.step != "leased":
            for pending in batch:
                self._judge(pending)
            return
        all_owed = owed((pending.entry for pending in batch), self._active)
        elsewhere = {key: self._debts[key] for key in all_owed if key in self._debts}
        debts = {key: group for key, group in all_owed.items() if key not in elsewhere}
        groups = [Group(True, tuple(missing(pending.entry, pending.places, self._active))) for pending in batch]
        own: _Debt = asyncio.get_running_loop().create_future()
        self._debts |= dict.fromkeys(debts, own)
        unpaid: dict[str, OverLimit] = {}
        try:
            answer = await self._broker.ask(self._gateway_id, [*debts.values(), *groups])
            now_us = self._now_us()
            for (key, group), granted in zip(debts.items(), answer.granted[: len(debts)], strict=True):
                over = take_asked(self._active, group, granted, now_us)
                if over is not None:
                    unpaid[key] = over
        except BusUnavailable as error:
            self._lost(str(error))
            for pending in batch:
                self._judge(pending)
            return
        finally:  # before this call waits for another: no two wait for each other
            for key in debts:
                del self._debts[key]
            own.set_result(unpaid)
        of_groups = zip(groups, answer.granted[len(debts) :], strict=True)
        overs = [take_asked(self._active, group, granted, now_us) for group, granted in of_groups]
        for debt in elsewhere.values():
            unpaid = unpaid | await asyncio.shield(debt)  # a call that is ended ends no other
        for pending, over in zip(batch, overs, strict=True):
            self._tell(pending, over, unpaid)

    def _tell(self, pending: "_Pending", over: OverLimit | None, unpaid: dict[str, OverLimit]) -> None:
        """`unpaid`: by account, why what it owed was not granted."""
        if pending.told:
            return
        if over is not None and self._has_come(pending):
            over = None
        still_owed = owed((pending.entry,), self._active) if unpaid else ()
        over = over or next((unpaid[key] for key in still_owed if key in unpaid), None)
        self.asks["granted" if over is None else "denied"] += 1
        pending.tell(over)

    def _has_come(self, pending: "_Pending") -> bool:
        """Whether what the bus refused was given back here meanwhile, by a request that has ended."""
        return not any(True for _ in missing(pending.entry, pending.places, self._active))

    def _judge(self, pending: "_Pending") -> None:
        """The bus has not answered in time."""
        if not pending.told:
            self.asks["slow"] += 1
            pending.tell(judged_here(pending.entry, self.gateways))

    # in touch or not

    def _in_touch(self, answer: LeaseAnswer) -> None:
        if answer.learning and not self._bus_is_new and self.regime.step == "leased":
            self._switch(regime_of(0.0, self.gateways))  # it was away, unnoticed
        is_same_bus = self._lost_s is not None and self._was_reached and not answer.learning
        bus_knows = is_same_bus and self.regime.gateways > 1
        if self._lost_s is not None and self._was_reached:
            self._found_again_s = self._clock()
        self._bus_is_new, self._was_reached, self._lost_s = answer.learning, True, None
        others_follow = answer.learning or self._has_just_come_back()
        self.gateways = max(1, answer.gateways, self.gateways if others_follow else 1)
        alone = self.gateways == 1 and not answer.learning
        if self.regime.step != "leased":
            self._bus_knows = bus_knows
        self._switch(Regime("share", 1) if alone else regime_of(None, self.gateways))

    def _has_just_come_back(self) -> bool:
        """The bus forgets gateways in ten seconds: after a longer silence, others may not have asked yet."""
        return self._found_again_s is not None and self._clock() - self._found_again_s < _OTHERS_FOLLOW_S

    def _lost(self, why: str) -> None:
        if self._lost_s is None:
            self._lost_s = self._clock()
        if not self._was_reached:
            return  # the share of those that are expected
        regime = regime_of(self._clock() - self._lost_s, self.gateways)
        if regime.step != self.regime.step:
            _log.warning("limits are kept without the bus (%s), by %s", why, regime.step)
        self._switch(regime)

    def _switch(self, regime: Regime) -> None:
        """A new object only where something changes: accounts compare by identity."""
        if regime.step == self.regime.step and (regime.gateways == self.regime.gateways or regime.step == "leased"):
            return
        if regime.step == "leased" or self.regime.step not in ("leased", "share"):
            _log.info("limits are kept by %s among %d gateways", regime.step, regime.gateways)
        if self.regime.step == "leased":
            now_us = self._now_us()
            for account in self._active.values():
                fit(account, regime, now_us)
        self._active = {}
        self.regime = regime

    def _now_us(self) -> int:
        return int(self._clock() * US_PER_S)


class _Pending:
    """One request that waits for its limits, and is told once."""

    __slots__ = ("_done", "entry", "places", "told")

    def __init__(self, entry: RequestQuota, done: Done) -> None:
        self.entry = entry
        self.places = places_of(entry)
        self._done = done
        self.told = False

    def tell(self, over: OverLimit | None) -> None:
        self.told = True
        try:
            self._done(over)
        except Exception:
            _log.exception("a request failed as its limits were answered")
