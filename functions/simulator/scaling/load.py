"""What a workload asks of a fleet, second by second: requests, tokens, and the engine seconds that they take.

    work of a request = prompt x prefill + output x (sequence + (prompt + output / 2) x kv)      by the engine's profile

which is what a request adds to the length of steps: an engine at whose steps a whole second of work arrives each second
is full, however many sequences it has. Worked example (test_worked_example_of_work): 1,000 prompt and 200 output tokens
on h100-8b: 1,000 x 0.2 + 200 x (0.05 + 1,100 x 0.00005) = 221 ms, so a replica does 4.5 such requests a second.

The batch band is counted apart: it may wait.
Neighbours: `fluid_pool` serves it, `oracle` knows it beforehand, `day` makes it of a workload.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from functions.decisions.admission.ticket import BANDS
from functions.simulator.fleet.engine_profile import EngineProfile
from functions.simulator.workload.asked import Asked

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
    """One after the other."""
    parts = list(loads)
    return Load(np.concatenate([part.soon for part in parts], 1), np.concatenate([part.later for part in parts], 1))


def work_s(prompt_tokens: float, output_tokens: float, profile: EngineProfile) -> float:
    attended_tokens = prompt_tokens + output_tokens / 2
    a_token_ms = profile.decode_ms_per_sequence + attended_tokens * profile.decode_ms_per_kv_token
    return (prompt_tokens * profile.prefill_ms_per_token + output_tokens * a_token_ms) / 1000


def load_of(workload: Iterable[Asked], seconds: int, profile: EngineProfile) -> Load:
    """Of a stream of requests in order of time."""
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
