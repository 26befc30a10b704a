"""How much of the time that there is may be foretold as waiting: learnt from how often who was let in came too late.

    somebody's turn came in time:   ratio + STEP x LATE
    somebody was late:              ratio - STEP x (1 - LATE)         between LEAST and MOST

A wait foretold is a mean; the turns come sooner or later than that, by how much depends on the pool: sizes of requests,
bursts, how steadily engines work. So the bound is moved until LATE of those that wait are late (Robbins and Monro's
search for a quantile). Who would be refused late is then refused at once, mostly, and can go elsewhere.
Worked example (test_worked_example_of_patience): from 0.9, two are late: 0.9 - 2 x 0.05 x 0.99 = 0.801. With 500 ms to
wait, whoever is foretold more than 400 ms is refused. It takes 198 that are in time to be back.

Only who had the band's whole time and was kept by the pool says something of the pool: not who set a deadline of his
own, and not who waited for his own requests (test_deadlines_of_ones_own_say_nothing_of_the_pool).
"""

LEAST, MOST = 0.1, 0.9  # of the time that there is
LATE = 0.01
_STEP = 0.05


class Patience:
    """One band's of a pool."""

    __slots__ = ("ratio",)

    def __init__(self) -> None:
        self.ratio = MOST

    def in_time(self) -> None:
        """Somebody waited, and its turn came."""
        self.ratio = min(MOST, self.ratio + _STEP * LATE)

    def late(self) -> None:
        """Somebody waited until it was too late."""
        self.ratio = max(LEAST, self.ratio - _STEP * (1.0 - LATE))
