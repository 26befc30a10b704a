"""Room for a surge: whether one replica more may start before another of its pool ends. Pure functions.

Each limit is counted by its owner: awake engines of a machine, fractions of an accelerator's memory, accelerators of
a cluster's nodes or of a quota. One more replica starts if every limit has room:

    used + needed <= limit

Otherwise replicas are replaced one by one, each drained first: a surge that cannot start would delay the change for
as long as a start may take.

Worked example (test_worked_example_of_a_shared_accelerator): two engines with 0.3 of an accelerator each
leave room for a third of 0.3; with 0.45 each they leave none.

Neighbours: targets count; `replica_shares` explains the surge.
"""

from collections.abc import Iterable
from dataclasses import dataclass

_ROUNDING = 1e-6  # floats: 0.3 + 0.3 + 0.4 is not 1


@dataclass(frozen=True, slots=True)
class Headroom:
    """One limit on the engines, and its use."""

    what: str  # for messages: "2 engines at most (SHOAL_MAX_ENGINES)"
    limit: float
    used: float
    needed: float = 1.0

    @property
    def suffices(self) -> bool:
        return self.used + self.needed <= self.limit + _ROUNDING


def describe_shortage(headrooms: Iterable[Headroom]) -> str:
    """Return why there is no room for one more replica, by the first exhausted limit; "" if there is room."""
    return next(
        (
            f"{room.what}: {room.used:.3g} of {room.limit:.3g} in use, one more takes {room.needed:.3g}"
            for room in headrooms
            if not room.suffices
        ),
        "",
    )
