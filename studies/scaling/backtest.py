"""Backtest of each forecast method on a recorded series.

The series is fed to `decisions.autoscaling.forecast` minute by minute, as in a controller, without knowledge of the
future. `shoal` is the method with the lowest recent error at each moment. Pinball is that of its 0.95 quantile, as a
share of the demand: too high costs once, too low nineteen times.

Neighbours: `decisions.autoscaling.forecast_methods` has the formulas.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Literal

import numpy as np

from functions.decisions.autoscaling.forecast import UPPER_QUANTILE, Demand, update_demand
from functions.decisions.autoscaling.forecast_methods import BIN_S, METHODS, pinball
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.decisions.autoscaling.signals import PoolSignals
from functions.simulator.workload.traces import read_trace
from studies.servegen.clients import WINDOW_S, read_clients
from studies.servegen.day import ServeGenDay


@dataclass(slots=True)
class Backtest:
    horizon_s: float
    came_sum: float = 0.0
    error_sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*METHODS, "shoal"), 0.0))
    pinball_sum: float = 0.0
    below: int = 0  # times that more came than the upper quantile
    minutes: int = 0
    chosen: Counter[str] = field(default_factory=Counter)

    def wape(self, method: str) -> float:
        return self.error_sums[method] / self.came_sum if self.came_sum else 0.0

    def figures(self) -> dict[str, object]:
        return {
            "horizon_s": self.horizon_s,
            "minutes": self.minutes,
            "wape": {method: round(self.wape(method), 4) for method in self.error_sums},
            "pinball_ratio": round(self.pinball_sum / self.came_sum, 4) if self.came_sum else 0.0,
            "above_upper_ratio": round(self.below / self.minutes, 4) if self.minutes else 0.0,
            "chosen": {name: round(count / self.minutes, 3) for name, count in self.chosen.most_common()},
        }


def backtest(series: Iterable[float], horizon_s: float, skip_minutes: int = 0) -> Backtest:
    """Run the backtest. `series`: one value a minute. The first `skip_minutes` are learnt from and not scored."""
    policy = ScalePolicy(min_replicas=0, max_replicas=1, startup_s=max(0.0, horizon_s - BIN_S))
    result, demand = Backtest(horizon_s), Demand()
    ahead_bins = max(1, ceil(horizon_s / BIN_S))
    said: dict[int, tuple[tuple[float, ...], int, float]] = {}
    for minute, value in enumerate(series):
        # A sample closes the bin of the minute before it, so the prediction for this minute does not know this value.
        demand = update_demand(demand, PoolSignals(at_s=minute * BIN_S, ready=0, arriving_tokens_per_s=value), policy)
        if demand.ahead and demand.ahead[-1][0] == minute - 1 + ahead_bins:
            foreseen = demand.ahead[-1][1]
            best = METHODS.index(demand.best())
            said[minute - 1 + ahead_bins] = foreseen, best, demand.scores[best].upper(foreseen[best], UPPER_QUANTILE)
        judged = said.pop(minute, None)
        if judged is not None and minute >= skip_minutes:
            _judge(result, judged, value)
    return result


def _judge(result: Backtest, said: tuple[tuple[float, ...], int, float], came: float) -> None:
    foreseen, best, upper = said
    result.minutes += 1
    result.came_sum += came
    for method, value in zip(METHODS, foreseen, strict=True):
        result.error_sums[method] += abs(came - value)
    result.error_sums["shoal"] += abs(came - foreseen[best])
    result.pinball_sum += pinball(UPPER_QUANTILE, upper, came)
    result.below += came > upper
    result.chosen[METHODS[best]] += 1


# Recorded series: requests a second, one value a minute. ServeGen's rates are means of ten minutes. `steps` holds
# each for its ten minutes, as its requests are generated; `lines` connects their middles, since traffic does not jump
# every ten minutes. Azure's requests have their own times.


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
    """Return the minutes of a trace that `read_trace` can read, without the last, incomplete one."""
    return list(_counted(path))[:-1]


def _counted(path: Path) -> Iterator[float]:
    minute, count = 0, 0
    for asked in read_trace(path):
        while asked.at_s >= (minute + 1) * _MINUTE_S:
            yield count / _MINUTE_S
            minute, count = minute + 1, 0
        count += 1
    yield count / _MINUTE_S
