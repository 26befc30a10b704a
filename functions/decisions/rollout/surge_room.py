"""Room for a surge: whether one replica more may be started before another of its pool is ended. Pure.

Each thing that bounds it is counted by whoever knows it: engines that may be awake on a machine, the memory of its
accelerators in parts of a whole one, accelerators of a cluster's nodes or of a quota. One more starts where all of them
have room:

    used + needed <= limit

Else replicas are replaced one by one, each drained first: a surge that cannot start would hold the change up for as
long as a start may take.

Worked example (test_worked_example_of_an_accelerator_that_is_shared): two engines with 0.3 of an accelerator each leave
room for a third of 0.3, with 0.45 each they leave none.

Neighbours: targets count; `replica_shares` says what a surge is for.
"""

from collections.abc import Iterable
from dataclasses import dataclass

_ROUNDING = 1e-6  # 0.3 + 0.3 + 0.4 is not 1


@dataclass(frozen=True, slots=True)
class Headroom:
    """Of one thing that bounds the engines."""

    what: str  # in words: "2 engines at most (SHOAL_MAX_ENGINES)"
    limit: float
    used: float
    needed: float = 1.0

    @property
    def suffices(self) -> bool:
        return self.used + self.needed <= self.limit + _ROUNDING


def without_room(headrooms: Iterable[Headroom]) -> str:
    """Why there is no place for one replica more, by the first that has none; "" where there is."""
    return next(
        (
            f"{room.what}: {room.used:.3g} of {room.limit:.3g} in use, one more takes {room.needed:.3g}"
            for room in headrooms
            if not room.suffices
        ),
        "",
    )
