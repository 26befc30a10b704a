"""Which batch of events comes next: sequence numbers in, what to do out.

The engine numbers its batches from 0, and a subscription brings them in that order, none twice. A number that is too
high means that some were lost on the way. One that was had already is a batch that a replay brought before, which then
has the same time; any other is another engine's, which began again at 0. No clock is compared with another: the new
engine's may be behind.

A replay is asked for from the last batch that was had. Where that is not the same batch (its number and its time), the
replay is of another engine, and nothing of the one before it is believed any more (`is_same`).

Worked example (test_worked_example_of_a_restart): a replay brought batch 41 of 12:00:05. Batch 41 of 12:00:05 is old,
batch 44 is a gap (what follows 41 is asked for), and batch 41 of 11:00:00 is a restart, as is batch 3, which no replay
brought.
"""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["next", "old", "gap", "restart"]


@dataclass(frozen=True, slots=True)
class Order:
    expected: int = 0  # the next batch's number
    last_ts_s: float = 0.0  # of the batch before it, by the engine's wall clock

    def judge(self, seq: int, ts_s: float, replayed_ts_s: float | None) -> Verdict:
        """Of a batch that the subscription brought; `replayed_ts_s` is of the one by that number in a replay."""
        if seq == self.expected:
            return "next"
        if seq > self.expected:
            return "gap"
        return "old" if ts_s == replayed_ts_s else "restart"

    @property
    def replay_from(self) -> int:
        """The last batch that was had, if there is one."""
        return max(0, self.expected - 1)

    def is_same(self, seq: int, ts_s: float) -> bool:
        """Whether a replay's first batch is what was asked for: of the same engine, and with nothing missing."""
        if self.expected == 0:
            return seq == 0
        return seq == self.expected - 1 and ts_s == self.last_ts_s
