"""What each way to foresee would have said of a recorded series, held against what came.

Minute by minute the series is shown to `decisions.autoscaling.forecast`, as a controller would see it; nothing of what
is to come is known. `shoal` is the method that was the best of late at each moment, and pinball is that of its 0.95
quantile, as a share of what came: what it costs to hold too much, and nineteen times that to hold too little.

Neighbours: `decisions.autoscaling.forecast_score` has the formulas.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil

from functions.decisions.autoscaling.forecast import UPPER_QUANTILE, Demand, learn
from functions.decisions.autoscaling.forecast_methods import BIN_S, METHODS
from functions.decisions.autoscaling.forecast_score import pinball
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.decisions.autoscaling.signals import PoolSignals


@dataclass(slots=True)
class Backtest:
    horizon_s: float
    came_sum: float = 0.0
    error_sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*METHODS, "shoal"), 0.0))
    pinball_sum: float = 0.0
    below: int = 0  # how often more came than the upper quantile
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
    """`series`: one value a minute. The first `skip_minutes` are learnt from and not judged."""
    policy = ScalePolicy(min_replicas=0, max_replicas=1, startup_s=max(0.0, horizon_s - BIN_S))
    result, demand = Backtest(horizon_s), Demand()
    ahead_bins = max(1, ceil(horizon_s / BIN_S))
    said: dict[int, tuple[tuple[float, ...], int, float]] = {}
    for minute, value in enumerate(series):
        # A look closes the bin of the minute before it; what it says of this minute does not know this value.
        demand = learn(demand, PoolSignals(at_s=minute * BIN_S, ready=0, arriving_tokens_per_s=value), policy)
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
