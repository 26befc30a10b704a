"""How well one method has foreseen of late: its share of error, and how far above it the truth may lie. Pure, bounded.

    WAPE          = sum |came - foreseen| / sum came                    the older ones weigh less: half after 2 hours
    upper(q)      = foreseen x (1 + the q quantile of (came - foreseen) / foreseen over the last 360)
    pinball(q)    = q x (came - upper) where more came, (1 - q) x (upper - came) where less; its mean says how good
                    the upper quantile is: too low is expensive, too high as well

Worked example (test_worked_example_of_a_score): 100 was foreseen four times, and 90, 100, 110, 130 came: WAPE is
(10 + 0 + 10 + 30) / 430 = 11.6 % where all weigh the same, and upper(0.75) = 110.

Neighbours: `forecast` keeps one for each method.
"""

from dataclasses import dataclass
from math import ceil

KEPT = 360
_LEAST = 1e-9


@dataclass(frozen=True, slots=True)
class Score:
    error_sum: float = 0.0
    came_sum: float = 0.0
    errors: tuple[float, ...] = ()  # relative, the latest last

    @property
    def wape(self) -> float | None:
        """None: nothing has come yet that was foreseen."""
        return self.error_sum / self.came_sum if self.came_sum > _LEAST else None

    def with_outcome(self, foreseen: float, came: float, keep_ratio: float) -> "Score":
        """`keep_ratio`: what the weight of all former ones is multiplied with."""
        relative = (came - foreseen) / foreseen if foreseen > _LEAST else 0.0
        return Score(
            self.error_sum * keep_ratio + abs(came - foreseen),
            self.came_sum * keep_ratio + came,
            (*self.errors, relative)[-KEPT:],
        )

    def upper(self, foreseen: float, quantile: float) -> float:
        """At least `foreseen`."""
        if not self.errors:
            return foreseen
        rank = max(1, ceil(quantile * len(self.errors) - 1e-9))
        return foreseen * (1.0 + max(0.0, sorted(self.errors)[rank - 1]))


def pinball(quantile: float, upper: float, came: float) -> float:
    return quantile * (came - upper) if came >= upper else (1.0 - quantile) * (upper - came)
