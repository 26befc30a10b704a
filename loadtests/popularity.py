"""Zipf's law: the k-th most popular of n is asked for with probability k^-s / sum(j^-s).

Which one is how popular is drawn by lot, so that what an agent loads ahead, by name, is no better than any.
Worked example: of two with s = 1, the first has 2/3 of the requests, the second 1/3
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
        """By `rng`, where several who ask share one popularity; else by the one that it was made with."""
        at = (rng or self._rng).random() * self._cumulative[-1]
        return self._order[bisect_left(self._cumulative, at)]

    def share_of_top(self, count: int) -> float:
        """The part of all requests that is for the `count` most popular: the best hit ratio of so many places."""
        return self._cumulative[min(count, len(self._cumulative)) - 1] / self._cumulative[-1]
