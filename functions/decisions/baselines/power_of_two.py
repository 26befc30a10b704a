"""Power of two choices: of two replicas drawn at random, the one with fewer requests of this router under way.

(Mitzenmacher 2001; the default of Ray Serve and of SGLang's model gateway's `power_of_two`.) Two draws without
repetition; of equals, the one drawn first.
"""

from collections.abc import Sequence

from functions.decisions.baselines.protocol import Draws, Question
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import Row


class PowerOfTwo:
    def __init__(self, rng: Draws) -> None:
        self._rng = rng

    def pick(self, asked: Question, rows: Sequence[Row], load: OwnLoad) -> Row:
        if len(rows) == 1:
            return rows[0]
        first, second = self._rng.sample(rows, 2)
        return second if load.in_flight.get(second[0], 0) < load.in_flight.get(first[0], 0) else first

    def started(self, key: str) -> None:
        """It remembers nothing."""

    def ended(self, key: str) -> None:
        """It remembers nothing."""
