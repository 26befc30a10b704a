"""What of a pool's forecast holds after a time in which nobody looked, as between two controllers. Pure.

What is usual (seasons), how well each method foresaw, what a replica does and how long it takes to start hold for
weeks. What was just now does not. A gap is never traffic of zero: the bins before it are dropped, so that the trend
sees no jump across it, and nothing is foreseen again before the first new bin is full, a minute later.

    gap             kept                                                           dropped
    to 2 minutes    everything: a restart
    longer          seasons, scores, swings, a replica's tokens a second, starts   bins, the open bin, what was ahead
    over 28 days    nothing: engines, prompts and customers are others             everything
    negative        as a longer one: the clock was set back

Worked example (test_worked_example_of_a_gap): bins of 30,000 tokens a second until 0:30. A controller that begins a
minute later foresees 30,000. One that begins at 3:00 and sees 20,000 foresees nothing at first, then 20,000: no mean
with the 30,000, no trend from them, and no 0.

Neighbours: `forecast` learns; the controller keeps it on disk.
"""

from dataclasses import dataclass, field

from functions.decisions.autoscaling.forecast import Demand
from functions.decisions.autoscaling.forecast_methods import BIN_S
from functions.decisions.autoscaling.forecast_season import DAY_S
from functions.decisions.autoscaling.startup_times import StartupTimes

RESTART_S = 2 * BIN_S
FORGOTTEN_S = 28 * DAY_S


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one pool; `Memory()` knows nothing."""

    demand: Demand = field(default_factory=Demand)
    starts: StartupTimes = field(default_factory=StartupTimes)


def resumed(memory: Memory, now_s: float) -> Memory:
    """As it is to be gone on from at `now_s`."""
    demand = memory.demand
    if demand.looked_s is None:
        return Memory(starts=memory.starts)
    gap_s = now_s - demand.looked_s
    if gap_s > FORGOTTEN_S:
        return Memory()
    if 0.0 <= gap_s <= RESTART_S:
        return memory
    lasting = Demand(
        replica_per_s=demand.replica_per_s,
        swing_ratio=demand.swing_ratio,
        day=demand.day,
        week=demand.week,
        scores=demand.scores,
    )
    return Memory(lasting, memory.starts)
