"""Which batch of events comes next: sequence numbers in, what to do out.

The engine numbers its batches from 0. A number that is too high means that some were lost on the way; one that was had
already is a batch that a replay brought before; and one that is too low with a later time is another engine, which
began again at 0.

Worked example (test_worked_example_of_a_restart): after batch 41 of 12:00:05, batch 41 of 12:00:05 is old, batch 44 is
a gap (42 is asked for), and batch 3 of 12:01:00 is a restart (0 is asked for).
"""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["next", "old", "gap", "restart"]


@dataclass(frozen=True, slots=True)
class Order:
    expected: int = 0  # the next batch's number
    latest_ts_s: float = 0.0

    def judge(self, seq: int, ts_s: float) -> Verdict:
        if seq == self.expected:
            return "next"
        if seq > self.expected:
            return "gap"
        return "restart" if ts_s > self.latest_ts_s else "old"

    def after(self, seq: int, ts_s: float) -> "Order":
        return Order(seq + 1, max(self.latest_ts_s, ts_s))
