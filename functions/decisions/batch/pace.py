"""Request rate of a batch: as much as is answered, less on refusals, never the last of a tenant's limits.

    window     lines in flight; begins at 4, + 1/window for each answer, halved when somebody says "wait"
    pause      a tenant's own limit (429) holds for every line: nobody asks before the time that it named, spread by up
               to a quarter so that batches part. A full pool (503) is that line's affair: only it waits
    headroom   a quarter of what may come at once under each limit stays with the tenant's own calls: below it the batch
               pauses until the bucket has come back to a quarter

Headroom, worked: 6,000 a minute, 100 may come now, full in 9 s. The bucket refills 100 a second, so that it holds
100 + 900 = 1,000; a quarter is 250; pause (250 - 100) / 100 = 1.5 s
(test_leaves_a_quarter_of_the_limit_to_the_tenants_own_calls).

A line that is told to wait (429 or 503 with Retry-After) is asked again for as long as the batch may run. One that
fails otherwise (no answer, 5xx) is asked four times in all, 1, 2 and 4 s apart, and then its failure is its result.
"""

from dataclasses import dataclass, field
from typing import Literal

FIRST_WINDOW = 4.0
HEADROOM_RATIO = 0.25
MAX_TRIES = 4
_MIN_WAIT_S = 0.5
_MAX_WAIT_S = 600.0  # then it is worth asking, whatever was said
_HALVE_EVERY_S = 1.0  # all lines in flight are refused at once: that is one piece of news
_OWN_LIMIT = 429
_WAITS = frozenset({_OWN_LIMIT, 503})
_TRANSIENT = frozenset({0, 408, 429, 499, 500, 502, 503, 504})  # 0: the answer was cut


@dataclass(frozen=True, slots=True)
class Again:
    """Ask this line again after so long; `told` if somebody said when."""

    after_s: float
    told: bool


Verdict = Again | Literal["done"]


def judge(status: int, retry_after_s: float | None, tries: int, draw: float) -> Verdict:
    """What becomes of a line that was answered so. `tries`: failures of it, this one included; `draw` in [0, 1)."""
    if status in _WAITS and retry_after_s is not None:
        after_s = min(_MAX_WAIT_S, max(_MIN_WAIT_S, retry_after_s))
        return Again(after_s * (1 + draw / 4), told=True)
    if status in _TRANSIENT and tries < MAX_TRIES:
        return Again(2.0 ** (tries - 1) * (1 + draw / 4), told=False)
    return "done"


@dataclass(slots=True)
class BatchPace:
    """Of one batch. Times are monotonic seconds."""

    most: float
    window: float = field(init=False)
    resume_s: float = 0.0
    _halved_s: float = float("-inf")

    def __post_init__(self) -> None:
        self.window = min(FIRST_WINDOW, self.most)

    def may_begin(self, in_flight: int, now_s: float) -> bool:
        return now_s >= self.resume_s and in_flight < max(1.0, self.window)

    def answered(self) -> None:
        self.window = min(self.most, self.window + 1 / self.window)

    def told_to_wait(self, status: int, after_s: float, now_s: float) -> None:
        if status == _OWN_LIMIT:
            self.resume_s = max(self.resume_s, now_s + after_s)
        if now_s - self._halved_s >= _HALVE_EVERY_S:
            self.window, self._halved_s = max(1.0, self.window / 2), now_s

    def left(self, limit_per_minute: float, remaining: float, reset_s: float, now_s: float) -> None:
        """Of a limit of the tenant's so much may come at once, and in so long all that ever may."""
        capacity = remaining + limit_per_minute * reset_s / 60
        missing = HEADROOM_RATIO * capacity - remaining
        if limit_per_minute > 0 and missing > 0:
            self.resume_s = max(self.resume_s, now_s + missing / limit_per_minute * 60)
