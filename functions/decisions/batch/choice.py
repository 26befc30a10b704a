"""Choice of the batch that a gateway works on: one without an owner, the oldest of the tenant with the fewest.

Whoever works on a batch touches its marker every few seconds. A marker that has not changed for `lease_s` of the
looker's own clock is nobody's, whatever any clock says: times of the store and of other gateways are compared only
with themselves. A look that failed says nothing, so that after an outage every owner has the whole time again.
(test_an_outage_of_the_store_takes_no_batch_from_its_owner)
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
    id: str  # ids sort by their age
    touched: float  # as the store says; only ever compared with itself


@dataclass(slots=True)
class Markers:
    """What one gateway saw of open batches' markers, and when."""

    lease_s: float = LEASE_S
    _seen: dict[str, tuple[float, float]] = field(default_factory=dict)  # by id: touched, and since when so

    def look(self, found: Iterable[OpenBatch], now_s: float) -> list[OpenBatch]:
        """Those that nobody touches any more."""
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
        """The store could not be read: what has not changed since is not known."""
        self._seen.clear()


def choose(idle: Iterable[OpenBatch], mine: Iterable[str], places: int, places_per_tenant: int) -> list[OpenBatch]:
    """Which to take. `mine`: the tenants of those that this gateway works on; `places`: how many more it may."""
    held = Counter(mine)
    waiting = sorted(idle, key=lambda one: one.id)
    chosen: list[OpenBatch] = []
    while waiting and len(chosen) < places:
        first = min(waiting, key=lambda one: (held[one.tenant], one.id))
        if held[first.tenant] >= places_per_tenant:
            break  # the least has as many as it may: so has everybody
        waiting.remove(first)
        held[first.tenant] += 1
        chosen.append(first)
    return chosen


# Completion window as clients write it: `24h` as OpenAI has it, or any `<n>m` and `<n>h` up to a week.


_WINDOW = re.compile(r"([1-9][0-9]{0,4})(m|h)")
_UNIT_S = {"m": 60, "h": 3600}
MAX_WINDOW_S = 7 * 24 * 3600


def window_s(text: str) -> int | None:
    """Seconds; None where the text is no window."""
    match = _WINDOW.fullmatch(text)
    seconds = int(match[1]) * _UNIT_S[match[2]] if match is not None else 0
    return seconds if 0 < seconds <= MAX_WINDOW_S else None
