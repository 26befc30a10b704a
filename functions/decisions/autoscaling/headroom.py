"""How many replicas a demand needs: the mean, and room for what it swings. Pure.

    needed = max( m / t ,  ( s + sqrt( (u - s)^2 + (z d)^2 ) ) / f )            rounded up

m is the expected demand in replicas (one replica at full work is 1), s that part of it that cannot wait, u the upper
quantile of what is foreseen of that part, d the standard deviation of it from one look to the next, z = 2.3. t = 0.8 is
the share of its work that a replica is to do on the mean, and f = 0.85 what it can do for a while: its steps grow as
1 / (1 - share), and beyond that first tokens come late. Demand from many independent sources swings by the square root
of its mean, so the room beside it shrinks as a pool grows (square-root staffing), down to what t leaves free. Two
sources of doubt add up as squares, since a wrong forecast and a burst have nothing to do with each other. What may wait
needs no room: it is pushed aside for as long.

Worked example (test_worked_example_of_headroom), nothing may wait: a mean of 30 replicas, swings of 0.7, no doubt:
30 / 0.8 = 37.5 against (30 + 2.3 x 0.7) / 0.85 = 37.2: 38, at 79 %. With swings of 3 and an upper quantile of 33:
(30 + sqrt(3^2 + 6.9^2)) / 0.85 = 44.1: 45, at 67 %. A tenth of it, with swings by the square root (0.95): 3.75 against
(3 + 2.2) / 0.85 = 6.1: 7, at 43 %. Where half of the 30 may wait, the other half swings by 3 and may become 22:
(15 + sqrt(7^2 + 6.9^2)) / 0.85 = 29.2: 38 again.

Neighbours: `forecast` asks for what is foreseen.
"""

from dataclasses import dataclass
from math import ceil, hypot

SWINGS = 2.3
FULL_RATIO = 0.85
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """In replicas at full work; see the prologue."""

    mean: float
    soon: float
    soon_upper: float
    swing: float


def replicas_needed(need: Need, target_utilization_ratio: float) -> int:
    room = hypot(max(0.0, need.soon_upper - need.soon), SWINGS * max(0.0, need.swing))
    wanted = max(0.0, need.mean / target_utilization_ratio, (need.soon + room) / FULL_RATIO)
    return ceil(wanted - _ROUNDING)
