"""The quota script in Python: what `functions.fleet.quota_script` does on the bus, in the same order, on a given time.

It keeps one level for each limit of each account, and the places that each gateway holds; see the script for why.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from functions.fleet.quota_leases import MICRO, Answer, Grant, Granted, Group, RateWish, Wish

_PLACES_TTL_US, _GATEWAY_TTL_US, _LEARNING_US = 10_000_000, 10_000_000, 1_000_000
_FULL_US = 100_000


@dataclass(slots=True)
class _Account:
    levels: dict[int, tuple[int, int]] = field(default_factory=dict)  # by limit: level, as of
    places: dict[str, tuple[int, int]] = field(default_factory=dict)  # by gateway: how many, until
    known: bool = False


class Script:
    def __init__(self) -> None:
        self._gateways: dict[str, int] = {}
        self._born_us: int | None = None
        self._accounts: dict[str, _Account] = {}

    def ask(self, gateway: str, groups: Sequence[Group], now_us: int) -> Answer:
        self._gateways[gateway] = now_us
        self._gateways = {name: at for name, at in self._gateways.items() if at > now_us - _GATEWAY_TTL_US}
        if self._born_us is None:
            self._born_us = now_us
        learning = now_us - self._born_us < _LEARNING_US
        call = _Call(self._accounts, gateway, now_us, learning)
        granted = tuple(call.answer(group) for group in groups)
        for name in call.touched:
            self._accounts[name].known = True
        return Answer(len(self._gateways), learning, granted)

    def places(self, account: str, now_us: int) -> int:
        """Held by all gateways."""
        found = self._accounts.get(account)
        return sum(held for held, until in found.places.values() if until > now_us) if found is not None else 0


class _Call:
    """One call of one gateway."""

    def __init__(self, accounts: dict[str, _Account], gateway: str, now_us: int, learning: bool) -> None:
        self._accounts, self._gateway, self._now_us, self._learning = accounts, gateway, now_us, learning
        self.touched: dict[str, None] = {}

    def answer(self, group: Group) -> Granted:
        wait_us = max([self._wait_us(wish) for wish in group.wishes], default=0) if group.all_or_none else 0
        grants = tuple(
            self._grant(wish, group.all_or_none) if wait_us == 0 else self._nothing(wish) for wish in group.wishes
        )
        return Granted(wait_us == 0, wait_us, grants)

    def _wait_us(self, wish: Wish) -> int:
        longest_us = 0
        held = self._others(wish) + wish.places_held
        if wish.places_limit >= 0 and wish.places_wanted > 0 and held + wish.places_wanted > wish.places_limit:
            longest_us = _FULL_US
        for rate in wish.rates:
            burst = rate.burst_micro
            missing = min(rate.wanted_micro, burst) - (burst - self._level(wish, rate))
            if rate.wanted_micro > 0 and (missing > 0 or burst <= 0):
                bears = ceil(missing * rate.period_s / rate.limit) if rate.limit > 0 else rate.period_s * MICRO
                longest_us = max(longest_us, bears)
        return longest_us

    def _grant(self, wish: Wish, in_full: bool) -> Grant:
        account, places = self._account(wish), wish.places_held
        if wish.places_limit >= 0:
            free = max(0, wish.places_limit - self._others(wish) - places)
            places = max(0, places + min(wish.places_wanted, free))
            account.places.pop(self._gateway, None)
            if places > 0:
                account.places[self._gateway] = (places, self._now_us + _PLACES_TTL_US)
        granted, left = [], []
        for rate in wish.rates:
            level = self._level(wish, rate)
            free, amount = rate.burst_micro - level, rate.wanted_micro
            if amount > 0 and not in_full:
                amount = 0 if self._learning or free <= 0 else min(amount, free // 2)
            level = max(0, level + amount)
            account.levels[rate.dimension] = (level, self._now_us)
            granted.append(amount)
            left.append(rate.burst_micro - level)
        return Grant(places, tuple(granted), tuple(left))

    def _nothing(self, wish: Wish) -> Grant:
        left = tuple(rate.burst_micro - self._level(wish, rate) for rate in wish.rates)
        return Grant(wish.places_held, (0,) * len(left), left)

    def _level(self, wish: Wish, rate: RateWish) -> int:
        account = self._account(wish)
        kept = account.levels.get(rate.dimension)
        if kept is None:
            level = rate.burst_micro if self._learning and not account.known else 0
        else:
            elapsed_us = max(0, self._now_us - kept[1])
            level = min(kept[0], rate.burst_micro + rate.limit * MICRO)
            level = max(0, level - elapsed_us * rate.limit // rate.period_s)
        account.levels[rate.dimension] = (level, self._now_us)
        return level

    def _others(self, wish: Wish) -> int:
        account = self._account(wish)
        account.places = {name: kept for name, kept in account.places.items() if kept[1] > self._now_us}
        return sum(held for name, (held, _) in account.places.items() if name != self._gateway)

    def _account(self, wish: Wish) -> _Account:
        self.touched[wish.account] = None
        return self._accounts.setdefault(wish.account, _Account())
