"""How a pool did over a window, for pictures: its queue, its first tokens and its replicas, every few seconds.

Neighbours: `experiment` makes one a run; `functions.cli.plan` draws both sides.
"""

from collections import defaultdict
from dataclasses import dataclass

from functions.api.ids import PoolName
from functions.simulator.fleet.simulation import Simulation

POINTS = 120  # of a window


@dataclass(frozen=True, slots=True)
class Point:
    at_s: float
    queue_s: float | None
    ttft_p99_ms: float | None
    ready: int
    starting: int
    shed_per_s: float | None


class Timeline:
    """An actor of the simulation."""

    def __init__(self) -> None:
        self.points: dict[PoolName, list[Point]] = defaultdict(list)

    def __call__(self, simulation: Simulation) -> None:
        for name in simulation.pools():
            signals, counts = simulation.signals(name), simulation.counts(name)
            p99_s = signals.ttft_p99_s
            self.points[name].append(
                Point(
                    simulation.now_s,
                    signals.queue_seconds,
                    p99_s * 1000 if p99_s is not None else None,
                    counts.ready,
                    counts.starting,
                    signals.shed_per_s,
                )
            )
