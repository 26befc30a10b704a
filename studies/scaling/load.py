"""Load of a workload, second by second: requests, tokens, and engine seconds (`plan.pace.work_s`).

The batch band is counted separately: it may wait. Neighbours: `fluid_pool` serves it, `oracle` knows it in advance,
`day` makes it from a workload.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from functions.decisions.admission.ticket import BANDS
from functions.simulator.fleet.engine_profile import EngineProfile
from functions.simulator.plan.pace import work_s
from functions.simulator.workload.request import WorkloadRequest

Floats = npt.NDArray[np.float64]
BATCH = BANDS.index("batch")


@dataclass(frozen=True, slots=True)
class Load:
    """Rows of `requests`, `tokens` and `work_s`, one entry a second; `later` are those of the batch band."""

    soon: Floats
    later: Floats

    @property
    def seconds(self) -> int:
        return int(self.soon.shape[1])

    @property
    def requests(self) -> Floats:
        return self._row(0)

    @property
    def tokens(self) -> Floats:
        return self._row(1)

    @property
    def work_s(self) -> Floats:
        return self._row(2)

    def _row(self, index: int) -> Floats:
        row: Floats = self.soon[index] + self.later[index]
        return row

    def within(self, from_s: int, to_s: int) -> "Load":
        return Load(self.soon[:, from_s:to_s], self.later[:, from_s:to_s])


def joined(loads: Iterable[Load]) -> Load:
    """Return the loads one after the other."""
    parts = list(loads)
    return Load(np.concatenate([part.soon for part in parts], 1), np.concatenate([part.later for part in parts], 1))


def load_of(workload: Iterable[WorkloadRequest], seconds: int, profile: EngineProfile) -> Load:
    """Return the load of a stream of requests in order of time."""
    soon, later = np.zeros((3, seconds)), np.zeros((3, seconds))
    second, sums = 0, _nothing()
    for asked in workload:
        if int(asked.at_s) != second:
            _enter(soon, later, second, sums)
            second, sums = int(asked.at_s), _nothing()
        part = sums[asked.band == BATCH]
        part[0] += 1
        part[1] += asked.prompt_tokens + asked.output_tokens
        part[2] += work_s(asked.prompt_tokens, asked.output_tokens, profile)
    _enter(soon, later, second, sums)
    return Load(soon, later)


def _nothing() -> tuple[list[float], list[float]]:
    return [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]


def _enter(soon: Floats, later: Floats, second: int, sums: tuple[list[float], list[float]]) -> None:
    if 0 <= second < soon.shape[1]:
        soon[:, second] += sums[0]
        later[:, second] += sums[1]
