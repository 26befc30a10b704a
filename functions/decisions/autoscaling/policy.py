"""Scaling policy of one pool: its AutoscalingPolicy, the latency target, and the start-up time.

Neighbours: `decide` applies it; `forecast_memory` has the start-up times.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from functions.api.expressions import ScaleRule, parse_scale_rule
from functions.api.snapshot import AutoscalingEntry

STALE_S = 45.0  # three periods of 15 s without figures
QUIET_S = 300.0  # minimum time without shrinking after growing
TARGET_UTILIZATION = 0.8  # beyond this, waiting at replicas starts to delay first tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePolicy:
    min_replicas: int
    max_replicas: int
    warm: int = 0
    up: tuple[ScaleRule, ...] = ()
    down: tuple[ScaleRule, ...] = ()
    slo_s: float | None = None  # target for the time to first token, used by rules with `slo`
    startup_s: float = 300.0  # from requesting a replica until it serves
    stale_s: float = STALE_S  # older signals are ignored
    quiet_s: float = QUIET_S
    target_utilization_ratio: float = TARGET_UTILIZATION
    idle_after_s: float = 600.0  # time without requests before scaling to zero, if min_replicas is 0

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas:
            raise ValueError(f"{self.min_replicas} to {self.max_replicas} replicas: raise max above min")

    @classmethod
    def from_entry(cls, entry: AutoscalingEntry, *, slo_s: float | None, startup_s: float) -> "ScalePolicy":
        return cls(
            min_replicas=entry.min_replicas,
            max_replicas=max(entry.min_replicas, entry.max_replicas),
            warm=entry.warm,
            up=_rules(entry.scale_up),
            down=_rules(entry.scale_down),
            slo_s=slo_s,
            startup_s=startup_s,
            idle_after_s=entry.idle_after_s,
        )

    @property
    def quiet_after_growing_s(self) -> float:
        """Seconds without shrinking after growing: the new replicas must serve first."""
        return max(self.quiet_s, self.startup_s)


def _rules(texts: Sequence[str]) -> tuple[ScaleRule, ...]:
    return tuple(map(parse_scale_rule, texts))
