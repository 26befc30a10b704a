"""Choice of the batches that a gateway works on: unowned ones, first the oldest of the tenant with the fewest.

A gateway touches the marker of its batch every few seconds. If a marker has not changed for `lease_s` of the
observer's own clock, the batch has no owner. Times of the store and of other gateways are compared only with
themselves. A failed read of the store says nothing, so after an outage every owner has the whole lease again
(test_store_outage_frees_no_batch).
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

LEASE_S = 20.0  # four heartbeats of 5 s
HEARTBEAT_S = 5.0


@dataclass(frozen=True, slots=True)
class OpenBatch:
    tenant: str
    id: str  # ids sort by age
    touched: float  # the store's time; only compared with itself


@dataclass(slots=True)
class Markers:
    """Markers of open batches as one gateway saw them, and when."""

    lease_s: float = LEASE_S
    _seen: dict[str, tuple[float, float]] = field(default_factory=dict)  # by id: touched, and unchanged since

    def find_idle(self, found: Iterable[OpenBatch], now_s: float) -> list[OpenBatch]:
        """Record the markers and return the batches whose markers this gateway has seen unchanged for `lease_s`, so
        that no gateway works on them."""
        before, self._seen = self._seen, {}
        idle: list[OpenBatch] = []
        for one in found:
            touched, since_s = before.get(one.id, (None, now_s))
            if touched != one.touched:
                since_s = now_s
            self._seen[one.id] = (one.touched, since_s)
            if now_s - since_s >= self.lease_s:
                idle.append(one)
        return idle

    def forget(self) -> None:
        """Drop all observations: the store could not be read."""
        self._seen.clear()


def choose(idle: Iterable[OpenBatch], mine: Iterable[str], places: int, places_per_tenant: int) -> list[OpenBatch]:
    """Return the batches to claim, oldest of the tenants with the fewest first. `mine`: tenants of this gateway's
    batches; `places`: how many more it may claim."""
    held = Counter(mine)
    waiting = sorted(idle, key=lambda one: one.id)
    chosen: list[OpenBatch] = []
    while waiting and len(chosen) < places:
        first = min(waiting, key=lambda one: (held[one.tenant], one.id))
        if held[first.tenant] >= places_per_tenant:
            break  # the tenant with the fewest is at its limit, so all are
        waiting.remove(first)
        held[first.tenant] += 1
        chosen.append(first)
    return chosen


# Completion window as clients write it: `24h` as in OpenAI's API, or any `<n>m` and `<n>h` up to a week.


_WINDOW = re.compile(r"([1-9][0-9]{0,4})(m|h)")
_UNIT_S = {"m": 60, "h": 3600}
MAX_WINDOW_S = 7 * 24 * 3600


def window_s(text: str) -> int | None:
    """Return the completion window in seconds; None if the text is invalid, zero or over MAX_WINDOW_S."""
    match = _WINDOW.fullmatch(text)
    seconds = int(match[1]) * _UNIT_S[match[2]] if match is not None else 0
    return seconds if 0 < seconds <= MAX_WINDOW_S else None
