"""Zipf's law: the k-th most popular of n models is requested with probability k^-s / sum(j^-s).

Ranks are random, so that an agent that loads adapters by name has no advantage.
Worked example: with two models and s = 1, the first gets 2/3 of the requests, the second 1/3
(`tests/loadtests/test_load_plans.py`).
"""

import random
from bisect import bisect_left
from itertools import accumulate


class Popularity:
    def __init__(self, count: int, exponent: float, rng: random.Random) -> None:
        self._order = rng.sample(range(count), count)
        self._cumulative = list(accumulate(float((rank + 1) ** -exponent) for rank in range(count)))
        self._rng = rng

    def draw(self, rng: random.Random | None = None) -> int:
        """Draw an index with `rng`, so that several users can share one popularity, or else with the own generator."""
        at = (rng or self._rng).random() * self._cumulative[-1]
        return self._order[bisect_left(self._cumulative, at)]

    def share_of_top(self, count: int) -> float:
        """Return the share of requests for the `count` most popular: the best hit ratio of a cache of that size."""
        return self._cumulative[min(count, len(self._cumulative)) - 1] / self._cumulative[-1]
