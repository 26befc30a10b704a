"""How many requests a minute a tenant may still send: a bucket that requests fill and time empties.

    level(now) = max(0, level - elapsed x per_minute / 60)         one more may come while level + 1 <= per_minute

The whole minute's worth may come at once; after that, requests come as fast as the bucket empties. So in any t seconds
at most per_minute + t x per_minute / 60 requests pass.
Worked example (test_worked_example_from_the_prologue): 60 a minute. The first 60 pass in one instant, the 61st is told
to wait 1 s, since one request's worth empties in 60 / 60 s; half a second later it is told 0.5 s.

The level is in requests, not in shares of the limit: a limit that grows leaves more room at once, one that shrinks
finds the bucket full at most, never overfull, so that nobody waits for the sins of a larger limit.
"""

from dataclasses import dataclass

_MINUTE_S = 60.0
_ROUNDING = 1e-9  # requests; emptied and filled a million times, a level is off by less


@dataclass(slots=True)
class RequestRate:
    """One tenant's bucket. Times are monotonic seconds."""

    level: float = 0.0
    updated_s: float = 0.0

    def try_take(self, per_minute: int, now_s: float) -> float:
        """Take one request's worth: 0 where it was there, else the seconds until it will be."""
        now_s = max(now_s, self.updated_s)
        level = self._level(per_minute, now_s)
        missing = level + 1.0 - per_minute
        if missing > _ROUNDING:
            self.level, self.updated_s = level, now_s
            return missing * _MINUTE_S / per_minute if per_minute > 0 else _MINUTE_S
        self.level, self.updated_s = level + 1.0, now_s
        return 0.0

    def remaining(self, per_minute: int) -> int:
        """How many more may come at once, as of the last take."""
        return max(0, int(per_minute - self.level + _ROUNDING))

    def full_again_s(self, per_minute: int) -> float:
        """Seconds from the last take until the whole limit is there again."""
        return self.level * _MINUTE_S / per_minute if per_minute > 0 else 0.0

    def is_idle(self, now_s: float) -> bool:
        """Whether the bucket is surely empty, whatever its limit: then it is as good as a new one."""
        return now_s - self.updated_s >= _MINUTE_S

    def _level(self, per_minute: int, now_s: float) -> float:
        level = self.level if self.level < per_minute else float(per_minute)
        level -= (now_s - self.updated_s) * per_minute / _MINUTE_S
        return level if level > 0.0 else 0.0
