"""Model of the quota script: does what `quota_script` does on the bus, in the same order, at a given time.

It stores one level for each limit of each account, and the places that each gateway holds; the script explains why.
Simulated fleets and the fault seeds lease their limits from it. `test_the_model_answers_as_the_script_does` compares
it with the script on a real server.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil

from functions.fleet.quota_leases import MICRO, Grant, GrantedGroup, Group, LeaseAnswer, LeaseRequest, RateRequest

_PLACES_TTL_US, _GATEWAY_TTL_US, _LEARNING_US = 10_000_000, 10_000_000, 1_000_000
_FULL_US = 100_000
_LEAST_PERIOD_S = 60
_KEPT_US_A_PERIOD_S = 2 * MICRO  # an unused account is forgotten after twice its longest period


@dataclass(slots=True)
class _Account:
    levels: dict[int, tuple[int, int]] = field(default_factory=dict)  # by limit: level, and the time it is as of
    places: dict[str, tuple[int, int]] = field(default_factory=dict)  # by gateway: number, and expiry
    until_us: int = 0

    def is_known(self) -> bool:
        return bool(self.levels or self.places)


class QuotaModel:
    """One bus. Times are the bus's own microseconds, which may be set back."""

    def __init__(self) -> None:
        self._gateways: dict[str, int] = {}
        self._born_us: int | None = None
        self._accounts: dict[str, _Account] = {}

    def request_leases(self, gateway: str, groups: Sequence[Group], now_us: int) -> LeaseAnswer:
        self._gateways[gateway] = now_us
        self._gateways = {name: at for name, at in self._gateways.items() if now_us - _GATEWAY_TTL_US < at <= now_us}
        if self._born_us is None:
            self._born_us = now_us
        learning = 0 <= now_us - self._born_us < _LEARNING_US
        call = _Call(self._accounts, gateway, now_us)
        granted = tuple(call.answer(group) for group in groups)
        call.extend_expiry()
        return LeaseAnswer(len(self._gateways), learning, granted)

    def places(self, account: str, now_us: int) -> int:
        """Return the number of the account's places that all gateways hold and that have not expired."""
        found = self._accounts.get(account)
        return sum(held for held, until in found.places.values() if until > now_us) if found is not None else 0

    def forget_expired(self, now_us: int) -> None:
        """Forget accounts that the server's expiry would have deleted."""
        for name in [name for name, account in self._accounts.items() if account.until_us <= now_us]:
            del self._accounts[name]

    def __len__(self) -> int:
        return len(self._accounts)


class _Call:
    """One script call of one gateway."""

    def __init__(self, accounts: dict[str, _Account], gateway: str, now_us: int) -> None:
        self._accounts, self._gateway, self._now_us = accounts, gateway, now_us
        self._touched: dict[str, _Account] = {}
        self._longest_s: dict[str, int] = {}

    def answer(self, group: Group) -> GrantedGroup:
        wait_us = max([self._wait_us(request) for request in group.requests], default=0) if group.all_or_none else 0
        grants = tuple(
            self._grant(request, group.all_or_none) if wait_us == 0 else self._grant_nothing(request)
            for request in group.requests
        )
        return GrantedGroup(wait_us == 0, wait_us, grants)

    def extend_expiry(self) -> None:
        for name, account in self._touched.items():
            if account.is_known():
                account.until_us = self._now_us + self._longest_s.get(name, _LEAST_PERIOD_S) * _KEPT_US_A_PERIOD_S

    def _wait_us(self, request: LeaseRequest) -> int:
        longest_us = 0
        held = self._others(request) + request.places_held
        if (
            request.places_limit >= 0
            and request.places_wanted > 0
            and held + request.places_wanted > request.places_limit
        ):
            longest_us = _FULL_US
        for rate in request.rates:
            burst = rate.burst_micro
            missing = min(rate.wanted_micro, burst) - (burst - self._level(request, rate))
            if rate.wanted_micro > 0 and (missing > 0 or burst <= 0):
                bears = ceil(missing * rate.period_s / rate.limit) if rate.limit > 0 else rate.period_s * MICRO
                longest_us = max(longest_us, bears)
        return longest_us

    def _grant(self, request: LeaseRequest, in_full: bool) -> Grant:
        account, places = self._account(request.account), request.places_held
        if request.places_limit >= 0:
            free = max(0, request.places_limit - self._others(request) - places)
            places = max(0, places + min(request.places_wanted, free))
            held = account.places.pop(self._gateway, (0, 0))[0]
            # urgent requests of one gateway may arrive out of order: the smaller one must not return places
            if in_full:
                places = max(places, held)
            if places > 0:
                account.places[self._gateway] = (places, self._now_us + _PLACES_TTL_US)
        granted, left = [], []
        for rate in request.rates:
            level = self._level(request, rate)
            free, amount = rate.burst_micro - level, rate.wanted_micro
            if amount > 0 and not in_full:
                part = 0 if free <= 0 else min(amount, free // 2)
                amount = part if part == amount else part - part % rate.request_micro
            level = max(0, level + amount)
            account.levels[rate.dimension] = (level, self._now_us)
            granted.append(amount)
            left.append(rate.burst_micro - level)
        return Grant(places, tuple(granted), tuple(left))

    def _grant_nothing(self, request: LeaseRequest) -> Grant:
        left = tuple(rate.burst_micro - self._level(request, rate) for rate in request.rates)
        return Grant(request.places_held, (0,) * len(left), left)

    def _level(self, request: LeaseRequest, rate: RateRequest) -> int:
        account = self._account(request.account)
        self._longest_s[request.account] = max(self._longest_s.get(request.account, _LEAST_PERIOD_S), rate.period_s)
        kept = account.levels.get(rate.dimension)
        if kept is None:
            level = 0
        else:
            elapsed_us = max(0, self._now_us - kept[1])
            level = min(kept[0], rate.burst_micro + rate.limit * MICRO)
            level = max(0, level - elapsed_us * rate.limit // rate.period_s)
        account.levels[rate.dimension] = (level, self._now_us)
        return level

    def _others(self, request: LeaseRequest) -> int:
        account = self._account(request.account)
        return sum(held for name, (held, _) in account.places.items() if name != self._gateway)

    def _account(self, name: str) -> _Account:
        found = self._touched.get(name)
        if found is None:
            account = self._accounts.get(name)
            if account is None or account.until_us <= self._now_us:
                account = self._accounts[name] = _Account()
            found = self._touched[name] = account
            account.places = dict(self._living(account.places.items()))
        return found

    def _living(self, places: Iterable[tuple[str, tuple[int, int]]]) -> Iterable[tuple[str, tuple[int, int]]]:
        """Yield places that have not expired. If the clock was set back, cap their expiry at the full lifetime."""
        for gateway, (held, until_us) in places:
            if until_us > self._now_us:
                yield gateway, (held, min(until_us, self._now_us + _PLACES_TTL_US))
