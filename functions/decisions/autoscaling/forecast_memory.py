"""Memory of a pool's autoscaling: start-up times, and which parts of the forecast survive a gap. Pure functions.

Seasons, the scores of the methods, a replica's rate and its start-up times hold for weeks; recent bins do not. A gap
never counts as zero traffic: the bins before it are dropped, so that the trend has no jump across the gap. The next
forecast is made when the first new bin is full, a minute later.

    gap             kept                                                           dropped
    to 2 minutes    everything: a restart
    longer          seasons, scores, swings, a replica's tokens a second, starts   bins, the open bin, predictions
    over 28 days    nothing: engines, prompts and customers have changed           everything
    negative        the same as "longer": the clock was set back

Worked example (test_worked_example_of_a_gap): bins of 30,000 tokens a second until 0:30. A controller that starts a
minute later predicts 30,000. One that starts at 3:00 and measures 20,000 has no forecast at first, then 20,000: no
mean with the 30,000, no trend from them, and no 0.

Start-up times are kept by the source of the weights:

    expected = the 0.9 quantile of the last 20 starts from that source; the published value counts until there are 3

So one lucky start promises nothing, and one slow start (a node had to be created first) does not rule for weeks.
Worked example (test_worked_example_of_starts): starts from disk took 41, 44, 62 and 48 s: rank ceil(0.9 x 4) = 4, 62
s. The initial values are rounded from reference figures: engines initialise for 16-21 s whatever the weights cost; a
15 GB model from S3 is ready after 23-66 s; nodes that must be provisioned first take minutes.

Neighbours: `forecast` updates the demand; `policy.startup_s` is that of the source of the pool's next replica; the
controller stores the memory on disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from types import MappingProxyType
from typing import Literal, get_args

from functions.decisions.autoscaling.forecast import Demand
from functions.decisions.autoscaling.forecast_methods import BIN_S, DAY_S

Source = Literal["warm", "disk", "peer", "s3", "cold"]

PUBLISHED_S: Mapping[Source, float] = MappingProxyType(
    {"warm": 1.0, "disk": 60.0, "peer": 75.0, "s3": 120.0, "cold": 300.0}
)
KEPT_STARTS = 20
_FEW = 3
_QUANTILE = 0.9
_MOST_S = 7200.0


@dataclass(frozen=True, slots=True)
class StartupTimes:
    """Start-up times of one pool, by source of the weights."""

    seen_s: Mapping[Source, tuple[float, ...]] = field(default_factory=dict)

    def with_start(self, source: Source, took_s: float) -> "StartupTimes":
        """Return the times with one more start, of which the latest KEPT_STARTS are kept. Invalid durations (negative,
        not a number, over two hours) and unknown sources are ignored."""
        if source not in get_args(Source) or not 0.0 <= took_s <= _MOST_S:
            return self
        kept = (*self.seen_s.get(source, ()), took_s)[-KEPT_STARTS:]
        return StartupTimes({**self.seen_s, source: kept})

    def expected_s(self, source: Source) -> float:
        seen = self.seen_s.get(source, ())
        if len(seen) < _FEW:
            return max((PUBLISHED_S[source], *seen))
        return sorted(seen)[ceil(_QUANTILE * len(seen)) - 1]


RESTART_S = 2 * BIN_S
FORGOTTEN_S = 28 * DAY_S


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one pool; `Memory()` is empty."""

    demand: Demand = field(default_factory=Demand)
    starts: StartupTimes = field(default_factory=StartupTimes)


def resume_memory(memory: Memory, now_s: float) -> Memory:
    """Return the memory to continue with at `now_s`: all of it after a short gap, without recent bins and level after a
    longer one, and an empty one after FORGOTTEN_S."""
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
