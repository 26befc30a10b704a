"""How long a replica takes to start, known per source of its weights: what was seen, or what others published. Pure.

    expected = the 0.9 quantile of the last 20 starts from that source, and of a published value until there are 3

so that one lucky start promises nothing, and one slow one (a node that had to be made first) does not rule for weeks.
Worked example (test_worked_example_of_starts): from disk 41, 44, 62 and 48 s were seen: rank ceil(0.9 x 4) = 4, 62 s.

The values to begin with are rounded from reference figures: engines initialise for 16-21 s whatever the weights cost;
a 15 GB model from S3 is ready after 23-66 s; nodes that must be provisioned first take minutes.

Neighbours: `autoscaling_policy.startup_s` is the one of the source that the pool's next replica would have.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from types import MappingProxyType
from typing import Literal, get_args

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
    """Of one pool."""

    seen_s: Mapping[Source, tuple[float, ...]] = field(default_factory=dict)

    def with_start(self, source: Source, took_s: float) -> "StartupTimes":
        """What is no time at all (negative, not a number) is not taken for one."""
        if source not in get_args(Source) or not 0.0 <= took_s <= _MOST_S:
            return self
        kept = (*self.seen_s.get(source, ()), took_s)[-KEPT_STARTS:]
        return StartupTimes({**self.seen_s, source: kept})

    def expected_s(self, source: Source) -> float:
        seen = self.seen_s.get(source, ())
        if len(seen) < _FEW:
            return max((PUBLISHED_S[source], *seen))
        return sorted(seen)[ceil(_QUANTILE * len(seen)) - 1]
