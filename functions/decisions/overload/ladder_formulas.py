"""Formulas of the overload ladder: the load that each rung has to carry, from arrivals, queue and capacity.

By Little's law, the queue divided by the throughput is the wait. The target is half of the maximum wait. A longer queue
has to shrink over the next `CORRECT_S`, and a shorter one may grow:

    room a second = capacity + (capacity x wait / 2 - queued) / CORRECT_S
    excess        = clamp(1 - room / arriving, 0, 1)              the share of arrivals that has to go elsewhere

Worked example (test_worked_example_of_the_excess): 4 replicas of 5,000 tokens a second, 100,000 arrive a second, 40,000
wait for at most 500 ms. Half of that is 5,000 tokens: the room is 20,000 - 35,000 / 5 = 13,000, the excess 0.87.

The lowest band carries the excess first. Each band is guaranteed its share of the pool, and at least one in twenty of
its requests, so none starves. Interactive requests are not shed: those in excess are rejected because of their own
predicted wait (`admission.queue`). No request is rejected that can wait: a band sheds only while its queue is worth
more than half of its maximum wait (batch: minutes). Until then its requests wait, and the band has its floor.

    kept(band)  = 1 - min(1 - floor, excess left / its part of arrivals)
    floor(band) = clamp(its share of the pool x capacity / (its part x arriving), 0.05, 1)

Worked example (test_worked_example_of_kept_ratios): twice the capacity arrives, 0.3 is to be rejected; 0.2 of
arrivals is batch, with 0.05 of the pool, 0.5 near-real-time, guaranteed 0.3 of it. The floors are 0.05 x 0.5 / 0.2 =
0.125 and 0.3 x 0.5 / 0.5 = 0.3. Batch gives 0.875 x 0.2 = 0.175, near-real-time the other 0.125: 0.75 is kept.

Replicas are wanted for the load that arrives now (or is expected by the time that they can help), at four fifths of
what each can do: `ceil(arriving / (0.8 x rate))`. Worked example (test_worked_example_of_replicas): 100,000 / (0.8 x
5,000) = 25.
"""

from collections.abc import Sequence
from math import ceil

CORRECT_S = 5.0
AIM_RATIO = 0.5  # target wait as a share of the maximum wait
FULL_RATIO = 0.8  # target load of a replica: above it, a small burst makes waits grow without bound
LEAST_KEPT_RATIO = 0.05  # share of each band's requests that is always admitted
_ROUNDING = 1e-9
_SPREAD = 0.6180339887498949  # golden ratio: consecutive multiples spread without gaps and clusters


def excess_ratio(arriving_per_s: float, capacity_per_s: float, queued: float, wait_s: float) -> float:
    """Return the share of arrivals that the pool cannot do in time. All amounts have the same unit."""
    if arriving_per_s <= 0.0:
        return 0.0
    room_per_s = capacity_per_s + (capacity_per_s * wait_s * AIM_RATIO - queued) / CORRECT_S
    return min(1.0, max(0.0, 1.0 - room_per_s / arriving_per_s))


def floor_ratios(
    share_ratios: Sequence[float], band_ratios: Sequence[float], capacity_ratio: float
) -> tuple[float, ...]:  # fmt: skip
    """Return the share of each band's requests to admit in any case. `capacity_ratio`: capacity over arrivals."""
    floors = [1.0]
    for share, part in zip(share_ratios[1:], band_ratios[1:], strict=True):
        owed = share * capacity_ratio / part if part > 0.0 else 1.0
        floors.append(min(1.0, max(LEAST_KEPT_RATIO, owed)))
    return tuple(floors)


def kept_ratios(
    excess: float, band_ratios: Sequence[float], floors: Sequence[float]
) -> tuple[tuple[float, ...], float]:  # fmt: skip
    """Return the share of each band's requests to admit, shedding the least urgent first down to its floor, and the
    excess left. `band_ratios`: shares of arrivals."""
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
    """Return the number of replicas of this rate for which each is at most four fifths full."""
    return ceil(arriving_per_s / (FULL_RATIO * replica_per_s) - _ROUNDING)


def target_headroom_ratio(use_ratio: float) -> float:
    """Return the share of shifted requests that another pool accepts: all up to three fifths use, none from four on."""
    return min(1.0, max(0.0, (FULL_RATIO - use_ratio) / 0.2))


def gives_way(kept_ratio: float, number: int) -> bool:
    """Return True if the request with this number is among those of its band that are rejected to keep `kept_ratio`.
    Consecutive numbers are spread evenly."""
    return kept_ratio < 1.0 and _SPREAD * number % 1.0 >= kept_ratio
