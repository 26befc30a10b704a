"""Leases of limits that several gateways share: periodic rounds in advance, and immediate requests.

    each 250 ms +- 10 %     what all active accounts want, in as few calls as possible; idle accounts each second
    a request lacks units   one call for all that wait; after 20 ms without an answer they wait no longer
    no answer               `quota_outage` decides how limits hold meanwhile; the log and a metric report it

While the bus knows only this gateway, nothing is leased: it enforces limits exactly by itself.

If an answer takes longer than 20 ms, a request may run on credit while its account owes less than a gateway's share
of a fourth of the burst. The bus distributes the other three fourths, so that a slow bus does not exceed the limit:

    granted immediately + credit of all gateways <= 3/4 burst + gateways x burst / (4 x gateways) = burst

For requests per minute the bus distributes the whole burst. Credit there is a share of what the bus last reported as
left, and none if that was nothing (`test_quota_slow_bus`).

One call at a time requests what an account owes. Requests of other calls wait for that call's answer too
(test_burst_of_several_calls_requests_its_debt_once).

`functions.decisions.quota.lease` computes amounts; `functions.fleet.quota_leases` carries them.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Literal, get_args

from functions.decisions.quota.account import QuotaAccount, apply_regime
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
_MAX_CALLS = 4  # concurrent calls, so that a slow one does not block the rest
_MAX_WAITING = 4096
_OTHERS_FOLLOW_S = 2.0  # several rounds: the first gateway to reach the bus again is not the only one
AskOutcome = Literal["granted", "denied", "slow"]
Done = Callable[[OverLimit | None], None]
_Debt = asyncio.Future[dict[str, OverLimit]]  # by account: the limit for which its debt was not granted


class QuotaLeases:
    """Leases of one gateway. Owned by one event loop."""

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
        """Start without leases. `expected_gateways` share the limits until the bus is reached for the first time."""
        self._broker = broker
        self._gateway_id = gateway_id
        self._clock = clock
        self._tasks = tasks
        self._uniform = uniform
        self.asks: dict[str, int] = dict.fromkeys(get_args(AskOutcome), 0)
        self.gateways = expected_gateways
        self._lost_s: float | None = None  # time of losing the bus; None: connected, or not yet reached
        self._found_again_s: float | None = None
        self._was_reached = False
        self._bus_is_new = False
        self._bus_knows = True  # True if the bus knows what was spent here before this regime
        self._active: dict[str, QuotaAccount] = {}
        self._waiting: list[_Pending] = []
        self._calls = 0  # calls to the bus in progress
        self._debts: dict[str, _Debt] = {}  # by account: debts that a call in progress requests
        self.regime = Regime("share", expected_gateways)

    def expect(self, gateways: int) -> None:
        """Set the number of gateways that share the limits; does nothing once the bus was reached."""
        if not self._was_reached:
            self.gateways = gateways
            self._switch(Regime("share", gateways))

    # calls of accounts

    def fit(self, key: str, account: QuotaAccount, now_us: int) -> None:
        if account.regime is self.regime:
            return
        apply_regime(account, self.regime, now_us, bus_knows=self._bus_knows)
        if self.regime.step == "leased" and (account.limited or account.slots is not None):
            self._active[key] = account

    def request_missing(self, entry: RequestQuota, done: Done) -> None:
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
        """Report to the bus that this gateway lives, and request what its accounts want. A lost bus is recorded.

        The timeout is per call, not per round: a busy bus makes rounds longer but is not considered lost.
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
        """Yield the lease requests that a round must include, each computed just before its call."""
        for key in tuple(self._active):
            account = self._active.get(key)
            if account is not None:
                request = request_of_round(key, account, now_us)
                if is_asked(account, request, now_us):
                    yield request

    async def _round_of(self, requests: list[LeaseRequest], now_us: int) -> None:
        async with asyncio.timeout(_ROUND_TIMEOUT_S):
            answer = await self._broker.request_leases(
                self._gateway_id, [Group(False, (request,)) for request in requests]
            )
        if self.regime.step == "leased":  # the bus was not lost meanwhile
            for request, granted in zip(requests, answer.granted, strict=True):
                account = self._active.get(request.account)
                if account is None:
                    continue
                take_round(account, request, granted, self._now_us())
                if account.is_idle(now_us):
                    account.regime = None  # the next request activates the account again
                    del self._active[request.account]
        self._in_touch(answer)

    # immediate requests

    async def _ask_waiting(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_ASKS_PER_CALL], self._waiting[_ASKS_PER_CALL:]
                await self._ask_for([pending for pending in batch if not pending.told])
        finally:
            self._calls -= 1

    async def _ask_for(self, batch: list["_Pending"]) -> None:
        """Request what these entries lack, and notify each; decide here if there is no bus.

        Units that arrive too late for a request still belong to this gateway.
        """
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
            answer = await self._broker.request_leases(self._gateway_id, [*debts.values(), *groups])
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
        finally:  # before waiting for other calls, so that no two wait for each other
            for key in debts:
                del self._debts[key]
            own.set_result(unpaid)
        of_groups = zip(groups, answer.granted[len(debts) :], strict=True)
        overs = [take_asked(self._active, group, granted, now_us) for group, granted in of_groups]
        for debt in elsewhere.values():
            unpaid = unpaid | await asyncio.shield(debt)  # cancelling one call must not cancel another
        for pending, over in zip(batch, overs, strict=True):
            self._notify(pending, over, unpaid)

    def _notify(self, pending: "_Pending", over: OverLimit | None, unpaid: dict[str, OverLimit]) -> None:
        """Notify a request, unless it was, of the limit that it exceeds, or None, and count the outcome.

        `unpaid` has by account the limit for which its debt was not granted.
        """
        if pending.told:
            return
        if over is not None and self._has_come(pending):
            over = None
        still_owed = owed((pending.entry,), self._active) if unpaid else ()
        over = over or next((unpaid[key] for key in still_owed if key in unpaid), None)
        self.asks["granted" if over is None else "denied"] += 1
        pending.notify(over)

    def _has_come(self, pending: "_Pending") -> bool:
        """Return True if the entry lacks nothing any more, because other requests that ended here have returned it."""
        return not any(True for _ in missing(pending.entry, pending.places, self._active))

    def _judge(self, pending: "_Pending") -> None:
        """Decide here, if still undecided, whether the request may run on credit: the bus has not answered in time."""
        if not pending.told:
            self.asks["slow"] += 1
            pending.notify(judged_here(pending.entry, self.gateways))

    # connection to the bus

    def _in_touch(self, answer: LeaseAnswer) -> None:
        if answer.learning and not self._bus_is_new and self.regime.step == "leased":
            self._switch(regime_of(0.0, self.gateways))  # the bus was restarted unnoticed
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
        """Return True if the bus was found again recently. It forgets silent gateways, so others may still be
        missing."""
        return self._found_again_s is not None and self._clock() - self._found_again_s < _OTHERS_FOLLOW_S

    def _lost(self, why: str) -> None:
        if self._lost_s is None:
            self._lost_s = self._clock()
        if not self._was_reached:
            return  # limits are shared among the expected gateways
        regime = regime_of(self._clock() - self._lost_s, self.gateways)
        if regime.step != self.regime.step:
            _log.warning("limits are kept without the bus (%s), by %s", why, regime.step)
        self._switch(regime)

    def _switch(self, regime: Regime) -> None:
        """Switch the regime if it changes. If leases end, apply it to their accounts; others compare it by identity."""
        if regime.step == self.regime.step and (regime.gateways == self.regime.gateways or regime.step == "leased"):
            return
        if regime.step == "leased" or self.regime.step not in ("leased", "share"):
            _log.info("limits are kept by %s among %d gateways", regime.step, regime.gateways)
        if self.regime.step == "leased":
            now_us = self._now_us()
            for account in self._active.values():
                apply_regime(account, regime, now_us)
        self._active = {}
        self.regime = regime

    def _now_us(self) -> int:
        return int(self._clock() * US_PER_S)


class _Pending:
    """One request that waits for its limits and is notified once."""

    __slots__ = ("_done", "entry", "places", "told")

    def __init__(self, entry: RequestQuota, done: Done) -> None:
        self.entry = entry
        self.places = places_of(entry)
        self._done = done
        self.told = False

    def notify(self, over: OverLimit | None) -> None:
        self.told = True
        try:
            self._done(over)
        except Exception:
            _log.exception("a request failed while its lease answer was delivered")
