"""Formulas of the overload ladder: what each rung has to carry, from arrivals, queue and capacity.

By Little's law, what waits divided by what is done a second is how long one waits. To keep the wait at half of what is
allowed, a queue that is longer has to shrink over the next `CORRECT_S`, and one that is shorter may grow:

    room a second = capacity + (capacity x wait / 2 - queued) / CORRECT_S
    excess        = clamp(1 - room / arriving, 0, 1)              the share of what comes that has to go elsewhere

Worked example (test_worked_example_of_the_excess): 4 replicas of 5,000 tokens a second, 100,000 come a second, 40,000
wait, 500 ms are allowed. Half of that is 5,000 tokens: the room is 20,000 - 35,000 / 5 = 13,000, the excess 0.87.

Of the excess, the lowest band gives first, each but for what it is guaranteed of the pool, and one in twenty in any
case: none starves. Interactive requests are not drawn by lot at all: what is too much of them is refused by the wait
that each of them would have (`admission.queue`). And nobody is refused who can wait: a band gives way at the door only
while its own queue is worth more than half of what it may wait (batch: minutes). Until then it has its floor, and
waits.

    kept(band)  = 1 - min(1 - floor, excess left / its part of what comes)
    floor(band) = clamp(its share of the pool x capacity / (its part x arriving), 0.05, 1)

Worked example (test_worked_example_of_who_gives): twice of what can be done comes, 0.3 is to be refused; 0.2 of what
comes is batch, to which 0.05 of the pool is left, 0.5 near-real-time, guaranteed 0.3 of it. The floors are 0.05 x 0.5 /
0.2 = 0.125 and 0.3 x 0.5 / 0.5 = 0.3. Batch gives 0.875 x 0.2 = 0.175, near-real-time the other 0.125: 0.75 is kept.

Replicas are wanted for what comes now (or is expected by the time that they can help), at four fifths of what each can
do: `ceil(arriving / (0.8 x rate))`. Worked example (test_worked_example_of_replicas): 100,000 / (0.8 x 5,000) = 25.
"""

from collections.abc import Sequence
from math import ceil

CORRECT_S = 5.0
AIM_RATIO = 0.5  # of the wait that is allowed
FULL_RATIO = 0.8  # of what a replica can do: above it, waits grow without bound for a little burst
LEAST_KEPT_RATIO = 0.05  # of each band's requests
_ROUNDING = 1e-9
_SPREAD = 0.6180339887498949  # the golden section: consecutive multiples leave no gaps and no clusters


def excess_ratio(arriving_per_s: float, capacity_per_s: float, queued: float, wait_s: float) -> float:
    """The share of what comes that the pool cannot do in time. Amounts in any one unit."""
    if arriving_per_s <= 0.0:
        return 0.0
    room_per_s = capacity_per_s + (capacity_per_s * wait_s * AIM_RATIO - queued) / CORRECT_S
    return min(1.0, max(0.0, 1.0 - room_per_s / arriving_per_s))


def floor_ratios(
    share_ratios: Sequence[float], band_ratios: Sequence[float], capacity_ratio: float
) -> tuple[float, ...]:  # fmt: skip
    """Of each band's requests, those that are let in whatever happens. `capacity_ratio`: of what comes in all."""
    floors = [1.0]
    for share, part in zip(share_ratios[1:], band_ratios[1:], strict=True):
        owed = share * capacity_ratio / part if part > 0.0 else 1.0
        floors.append(min(1.0, max(LEAST_KEPT_RATIO, owed)))
    return tuple(floors)


def kept_ratios(
    excess: float, band_ratios: Sequence[float], floors: Sequence[float]
) -> tuple[tuple[float, ...], float]:  # fmt: skip
    """Of each band's requests those to let in, and what of the excess is left. `band_ratios`: what comes, by band."""
    kept, left = [1.0] * len(band_ratios), excess
    for band in reversed(range(len(band_ratios))):
        part = band_ratios[band]
        if left <= _ROUNDING or part <= 0.0:
            continue
        given = min(1.0 - floors[band], left / part)
        kept[band] = 1.0 - given
        left -= given * part
    return tuple(kept), left if left > _ROUNDING else 0.0


def replicas_wanted(arriving_per_s: float, replica_per_s: float) -> int:
    """So many that each is at most four fifths full."""
    return ceil(arriving_per_s / (FULL_RATIO * replica_per_s) - _ROUNDING)


def target_headroom_ratio(use_ratio: float) -> float:
    """How much of what is shifted another pool may be sent: all below three fifths of its own limits, none at four."""
    return min(1.0, max(0.0, (FULL_RATIO - use_ratio) / 0.2))


def gives_way(kept_ratio: float, number: int) -> bool:
    """Whether one request of a band is among those refused. The numbers of a run spread evenly, in any part of it."""
    return kept_ratio < 1.0 and _SPREAD * number % 1.0 >= kept_ratio
