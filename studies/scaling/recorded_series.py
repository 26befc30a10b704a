"""Recorded requests a second, one value a minute, for backtests.

ServeGen's rates are means of ten minutes. `steps` keeps each for its ten minutes, which is how its requests are made;
`lines` joins their middles, since traffic does not jump at whole ten minutes. Azure's requests have times of their own.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from functions.simulator.workload.traces import read_trace
from studies.servegen.clients import WINDOW_S, read_clients
from studies.servegen.day import ServeGenDay

Joint = Literal["steps", "lines"]
_MINUTE_S = 60


def servegen_minutes(directory: Path, pool: str, days: int, joint: Joint) -> list[float]:
    clients = read_clients(directory, pool, seconds=days * 86_400)
    rates = np.array([rate for _, rate in ServeGenDay(clients=clients).rates_per_s()])
    minutes = np.arange(len(rates) * WINDOW_S // _MINUTE_S)
    a_window = WINDOW_S // _MINUTE_S
    if joint == "steps":
        return [float(rate) for rate in rates[minutes // a_window]]
    return [float(rate) for rate in np.interp((minutes + 0.5) / a_window - 0.5, np.arange(len(rates)), rates)]


def trace_minutes(path: Path) -> list[float]:
    """Of a trace that `read_trace` can read; the last, broken minute is left out."""
    return list(_counted(path))[:-1]


def _counted(path: Path) -> Iterator[float]:
    minute, count = 0, 0
    for asked in read_trace(path):
        while asked.at_s >= (minute + 1) * _MINUTE_S:
            yield count / _MINUTE_S
            minute, count = minute + 1, 0
        count += 1
    yield count / _MINUTE_S
