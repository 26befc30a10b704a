"""Busiest models by name, all others together: the bound of a label that tenants' adapters would grow.

The first so many that are asked for get their names. Then, once a minute, one that was asked for more than twice as
often as the quietest named one takes its place: a series begins and another ends, and no more than `_MOST_CHANGES` a
minute. Models that were not asked for at all since the last look lose their names to any that was.
Worked example (test_a_busy_model_takes_the_place_of_a_quiet_one): with two names, of 5, 40 and 100 requests a minute
the one with 5 was there first; after a minute the names are those with 40 and 100.

Counting is one look into a dict; of those without a name the first `_CANDIDATES` of a minute are counted.
"""

from collections.abc import Callable

NAMED_MODELS = 50
OTHER = "other"
RANK_EVERY_S = 60.0
_MOST_CHANGES = 10  # a minute
_CANDIDATES = 4096
_TIMES_BUSIER = 2


class Busiest:
    """Owned by one event loop. `forget` is called with each name that its place was taken from."""

    def __init__(self, most: int, forget: Callable[[str], None]) -> None:
        self._most = most
        self._forget = forget
        self._named: dict[str, int] = {}  # requests since the last look
        self._others: dict[str, int] = {}
        self._ranked_s: float | None = None

    def label(self, name: str) -> str:
        """One more request; what its series is called."""
        named = self._named
        if name in named:
            named[name] += 1
            return name
        if len(named) < self._most:
            named[name] = 1
            return name
        others = self._others
        if name in others:
            others[name] += 1
        elif len(others) < _CANDIDATES:
            others[name] = 1
        return OTHER

    def rank(self, now_s: float) -> None:
        """Does nothing within a minute of the last time."""
        if self._ranked_s is None:
            self._ranked_s = now_s
        if now_s - self._ranked_s < RANK_EVERY_S:
            return
        self._ranked_s = now_s
        rising = sorted(self._others, key=self._others.__getitem__, reverse=True)[:_MOST_CHANGES]
        falling = sorted(self._named, key=self._named.__getitem__)
        for up, down in zip(rising, falling, strict=False):
            if self._others[up] <= _TIMES_BUSIER * self._named[down]:
                break
            del self._named[down]
            self._named[up] = 0
            self._forget(down)
        self._named = dict.fromkeys(self._named, 0)
        self._others.clear()
