"""Resident memory of every process over time, and its slope.

The slope is Theil's: the median of the slopes between all pairs, which one full collection or one burst does not move.
Processes that lived less than half of the run, or only their first minutes, are reported and not judged.
"""

import statistics
import time
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

_PAIRS = 200  # points a series is thinned to: 20,000 pairs


@dataclass(slots=True)
class Series:
    name: str
    points: list[tuple[float, float]] = field(default_factory=list)  # seconds, MiB

    @property
    def lived_s(self) -> float:
        return self.points[-1][0] - self.points[0][0]

    def slope_mib_per_h(self, after_s: float) -> float:
        """Return the slope from this age of the process on; imports, caches and arenas grow before."""
        began_s = self.points[0][0]
        late = [point for point in self.points if point[0] - began_s >= after_s]
        late = late[:: max(1, len(late) // _PAIRS)]
        slopes = [
            (second[1] - first[1]) / (second[0] - first[0])
            for number, first in enumerate(late)
            for second in late[number + 1 :]
        ]
        return statistics.median(slopes) * 3600 if slopes else 0.0


class Memory:
    def __init__(self) -> None:
        self.series: dict[tuple[int, float], Series] = {}

    def sample(self) -> None:
        now_s = time.monotonic()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                key = (process.pid, process.create_time())
                series = self.series.get(key)
                if series is None:
                    series = self.series[key] = Series(_name(process))
                series.points.append((now_s, process.memory_info().rss / 2**20))


def _name(process: psutil.Process) -> str:
    environment = process.environ()
    line = " ".join(process.cmdline())
    if "tests.drills.chaos" in line:
        return "chaos"
    if environment.get("SHOAL_GATEWAY_GATEWAY_ID") == "gateway-2" and "functions.gateway" in line:
        return "gateway-2"
    if "functions.controller" in line:
        return "controller"
    if "registry-2" in environment.get("SHOAL_REGISTRY_STATE_DIR", "") and "functions.registry" in line:
        return "registry-2"
    return environment.get("SHOAL_PROCESS") or process.name()
