"""Outcome of a day under one autoscaler: share served in time, and cost of the replicas.

    attainment   = interactive requests with their first token in time / all interactive requests
    utilization  = engine seconds of the requests' work / replica seconds paid, including starting and draining ones

Neighbours: `fluid_pool` and `fleet_run` fill it in, `day` compares.
"""

from dataclasses import dataclass, field
from typing import Any

from functions.decisions.autoscaling.signals import PoolSignals


@dataclass(slots=True)
class DayOutcome:
    asked: float = 0.0
    in_time: float = 0.0
    refused: float = 0.0
    later_asked: float = 0.0  # in the batch band
    later_in_time: float = 0.0
    replica_s: float = 0.0
    work_s: float = 0.0
    grown: int = 0  # replicas started
    turns: int = 0  # changes between growing and shrinking
    replicas: list[int] = field(default_factory=list)  # replicas paid for, one a period
    demand: list[float] = field(default_factory=list)  # arrived work in replicas, one a period
    waits_s: list[float] = field(default_factory=list)  # longest wait of each period
    _direction: int = 0

    @property
    def attainment_ratio(self) -> float:
        return self.in_time / self.asked if self.asked else 1.0

    @property
    def later_attainment_ratio(self) -> float:
        return self.later_in_time / self.later_asked if self.later_asked else 1.0

    @property
    def utilization_ratio(self) -> float:
        return self.work_s / self.replica_s if self.replica_s else 0.0

    @property
    def replica_hours(self) -> float:
        return self.replica_s / 3600

    def note(self, replicas: int, signals: PoolSignals, worst_wait_s: float) -> None:
        self.replicas.append(replicas)
        self.demand.append((signals.utilization_ratio or 0.0) * signals.ready)
        self.waits_s.append(worst_wait_s)

    def scaled(self, change: int) -> None:
        direction = (change > 0) - (change < 0)
        self.grown += max(0, change)
        self.turns += direction != 0 and self._direction == -direction
        self._direction = direction or self._direction

    def figures(self) -> dict[str, Any]:
        return {
            "attainment_ratio": round(self.attainment_ratio, 5),
            "batch_attainment_ratio": round(self.later_attainment_ratio, 5),
            "refused_ratio": round(self.refused / self.asked, 5) if self.asked else 0.0,
            "replica_hours": round(self.replica_hours, 1),
            "utilization_ratio": round(self.utilization_ratio, 4),
            "started": self.grown,
            "turns": self.turns,
        }
