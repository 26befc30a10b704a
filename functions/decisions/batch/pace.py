"""Request rate of a batch: as fast as answers come, slower on rejections, and never the last of a tenant's limits.

    window     lines in flight; starts at 4, + 1/window for each answer, halved on a rejection
    pause      a tenant's own limit (429) stops all lines until the time that it named, plus up to a quarter so that
               batches spread out; a full pool (503) delays only the rejected line
    headroom   a quarter of the burst that each limit allows is left for the tenant's own calls: below it the batch
               pauses until the bucket is back at a quarter

Worked example of headroom (test_quarter_of_the_limit_stays_for_the_tenants_own_calls): 6,000 a minute, 100 remain,
full in 9 s. The bucket refills 100 a second, so it holds 100 + 900 = 1,000; a quarter is 250; pause (250 - 100) / 100
= 1.5 s.

A line that is told to wait (429 or 503 with Retry-After) is retried for as long as the batch may run. A line that
fails otherwise (no answer, 5xx) is sent four times in all, 1, 2 and 4 s apart; then its failure is its result.
"""

from dataclasses import dataclass, field
from typing import Literal

FIRST_WINDOW = 4.0
HEADROOM_RATIO = 0.25
MAX_TRIES = 4
_MIN_WAIT_S = 0.5
_MAX_WAIT_S = 600.0  # upper limit of a wait, whatever Retry-After says
_HALVE_EVERY_S = 1.0  # lines in flight are rejected together: that counts as one rejection
_OWN_LIMIT = 429
_WAITS = frozenset({_OWN_LIMIT, 503})
_TRANSIENT = frozenset({0, 408, 429, 499, 500, 502, 503, 504})  # 0: the answer was cut


@dataclass(frozen=True, slots=True)
class Again:
    """Retry this line after `after_s`; `told` is True if Retry-After set the time."""

    after_s: float
    told: bool


Verdict = Again | Literal["done"]


def judge(status: int, retry_after_s: float | None, tries: int, draw: float) -> Verdict:
    """Decide about an answered line: retry it after a delay, or it is done. `tries`: its failures, this one included;
    `draw` in [0, 1) spreads the delay."""
    if status in _WAITS and retry_after_s is not None:
        after_s = min(_MAX_WAIT_S, max(_MIN_WAIT_S, retry_after_s))
        return Again(after_s * (1 + draw / 4), told=True)
    if status in _TRANSIENT and tries < MAX_TRIES:
        return Again(2.0 ** (tries - 1) * (1 + draw / 4), told=False)
    return "done"


@dataclass(slots=True)
class BatchPace:
    """Window and pause of one batch. Times are monotonic seconds."""

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

    def slow_down(self, status: int, after_s: float, now_s: float) -> None:
        if status == _OWN_LIMIT:
            self.resume_s = max(self.resume_s, now_s + after_s)
        if now_s - self._halved_s >= _HALVE_EVERY_S:
            self.window, self._halved_s = max(1.0, self.window / 2), now_s

    def keep_headroom(self, limit_per_minute: float, remaining: float, reset_s: float, now_s: float) -> None:
        """Pause until a limit of the tenant has its headroom again, if it is below: `remaining` now, full after
        `reset_s`."""
        capacity = remaining + limit_per_minute * reset_s / 60
        missing = HEADROOM_RATIO * capacity - remaining
        if limit_per_minute > 0 and missing > 0:
            self.resume_s = max(self.resume_s, now_s + missing / limit_per_minute * 60)
