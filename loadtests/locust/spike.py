"""A spike: the usual load, five times as much within 30 s, then the usual load again. A pure plan of phases.

Worked example with 10 users for 180 s: 10 users until second 60, 50 by second 90 at the latest, 50 until second 120,
then 10 again. In shorter runs the rise takes a third of the spike. (`tests/loadtests/test_load_plans.py`)
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
        """Return the phase: before, spike or after."""
        return "before" if at_s < self._third_s else "spike" if at_s < 2 * self._third_s else "after"

    def load(self, at_s: float) -> tuple[int, float] | None:
        """Return the users and the spawn rate per second, or None when the run is over."""
        if at_s >= self.run_time_s:
            return None
        most = max(self.users + 1, round(self.users * self.times))
        rate = (most - self.users) / min(RISE_S, self._third_s / 3)
        return (most if self.phase(at_s) == "spike" else self.users), max(1.0, rate)
