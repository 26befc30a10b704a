"""When a band is overloaded, and who has to make room first.

A band is overloaded once the one that has waited longest has done so for more than a quarter of the promised time to
first token, at every look for one such time; it is over when that was not so at any look for as long. While the
interactive band is overloaded, the newest go first (those who have waited long have mostly given up, and serving them
makes everyone late; `maxWait` says when they are refused); and batch falls back to its floor (`bands`).
Worked example (test_worked_example_of_overload): 500 ms are promised. At 10.0 s, 10.25 s and 10.5 s the first in line
has waited for more than 125 ms: overloaded from 10.5 s on.

As the queue fills, the room of light tenants shrinks first:

    room ratio = 0.5 + 0.5 x weight / heaviest weight

Worked example (test_light_tenants_lose_their_room_first): of 2,000,000 tokens that may wait, a tenant of weight 1
beside one of weight 8 is refused from 1,125,000 on, the heavy one only at 2,000,000.
"""

from dataclasses import dataclass

_LONG_RATIO = 0.25  # of the promised time
_ALWAYS_RATIO = 0.5  # of the queue, open to every tenant


@dataclass(slots=True)
class Strain:
    """One band, over time."""

    overloaded: bool = False
    since_s: float | None = None  # since when it has looked other than `overloaded` says

    def look(self, waited_s: float, slo_s: float, now_s: float) -> bool:
        """The longest wait as of now; returns whether the band is overloaded."""
        if (waited_s > _LONG_RATIO * slo_s) == self.overloaded:
            self.since_s = None
        elif self.since_s is None:
            self.since_s = now_s
        elif now_s - self.since_s >= slo_s:
            self.overloaded, self.since_s = not self.overloaded, None
        return self.overloaded


def queue_room_ratio(weight: float, heaviest: float) -> float:
    """How full the queue may be for a tenant of this weight still to be taken in."""
    return _ALWAYS_RATIO + (1.0 - _ALWAYS_RATIO) * min(1.0, weight / heaviest)
