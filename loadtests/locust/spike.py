"""A spike: the usual load, five times as much within half a minute, and the usual again. Pure: a plan and its phases.

Worked example, of 180 s with 10 users: 10 until second 60, rising to 50 by second 90 at the latest (a third of the
spike's minute where that is shorter than 30 s), 50 until 120, then 10 again (`tests/loadtests/test_load_plans.py`).
"""

from dataclasses import dataclass

RISE_S = 30.0


@dataclass(frozen=True, slots=True)
class Spike:
    users: int
    run_time_s: float
    times: float = 5.0

    @property
    def _third_s(self) -> float:
        return self.run_time_s / 3

    def phase(self, at_s: float) -> str:
        """before, spike or after."""
        return "before" if at_s < self._third_s else "spike" if at_s < 2 * self._third_s else "after"

    def load(self, at_s: float) -> tuple[int, float] | None:
        """Users, and how many begin a second; None when the run is over."""
        if at_s >= self.run_time_s:
            return None
        most = max(self.users + 1, round(self.users * self.times))
        rate = (most - self.users) / min(RISE_S, self._third_s / 3)
        return (most if self.phase(at_s) == "spike" else self.users), max(1.0, rate)
