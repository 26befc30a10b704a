"""Autoscalers behind one interface: each sees the same figures and says how many replicas there are to be.

    shoal       `decisions.autoscaling.decide` with its forecast, unchanged
    reactive    the same without seasons and trends: it goes by what is asked for now
    rules       the policy's rules alone
    static      always the same: what the day's peak needs
    oracle      knows what will come (`oracle`)
    hpa, kpa    what others do (`others`)

A scaler has a state and belongs to one run. Neighbours: `fluid_pool` and `fleet_run` ask them.
"""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from functions.decisions.autoscaling.decide import ScalerState, Scaling, decide
from functions.decisions.autoscaling.forecast import Demand, foresee, learn
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.decisions.autoscaling.signals import PoolSignals
from functions.simulator.scaling.others import Bounds, HpaState, KpaState, hpa, kpa

ScalerName = Literal["shoal", "reactive", "rules", "static", "oracle", "hpa", "kpa"]


class Scaler(Protocol):
    def look(self, signals: PoolSignals, now_s: float) -> int:
        """Replicas that there are to be, those on their way included."""


class OwnScaler:
    """The decision that the controller makes, with what it has learnt before. `demand` None: rules alone."""

    def __init__(self, policy: ScalePolicy, demand: Demand | None) -> None:
        self.policy = policy
        self.demand = demand
        self.state = ScalerState()
        self.scaling: Scaling | None = None

    def look(self, signals: PoolSignals, now_s: float) -> int:
        forecast = None
        if self.demand is not None:
            self.demand = learn(self.demand, signals, self.policy)
            forecast = foresee(self.demand, self.policy, now_s)
        self.state, self.scaling = decide(self.state, self.policy, signals, now_s, forecast)
        return self.scaling.desired


class StaticScaler:
    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    def look(self, signals: PoolSignals, now_s: float) -> int:
        return self._replicas


class PlannedScaler:
    """By a plan made beforehand: what is to be there at each moment; starts are begun ahead by the start-up time."""

    def __init__(self, plan: Sequence[int], step_s: float, startup_s: float) -> None:
        self._plan = plan
        self._step_s = step_s
        self._startup_s = startup_s

    def look(self, signals: PoolSignals, now_s: float) -> int:
        first = int(now_s / self._step_s)
        last = int((now_s + self._startup_s) / self._step_s) + 1
        return max(self._plan[first : last + 1], default=self._plan[-1])


class HpaScaler:
    def __init__(self, target_per_s: float, bounds: Bounds) -> None:
        self._state = HpaState()
        self._target_per_s = target_per_s
        self._bounds = bounds

    def look(self, signals: PoolSignals, now_s: float) -> int:
        self._state, desired = hpa(self._state, signals, now_s, target_per_s=self._target_per_s, bounds=self._bounds)
        return desired


class KpaScaler:
    """`under_way` tells the requests in the pool: Knative asks its queue proxies, not a gateway."""

    def __init__(self, target: float, bounds: Bounds, under_way: Callable[[], float]) -> None:
        self._state = KpaState()
        self._target = target
        self._bounds = bounds
        self._under_way = under_way

    def look(self, signals: PoolSignals, now_s: float) -> int:
        self._state, desired = kpa(
            self._state, signals, self._under_way(), now_s, target=self._target, bounds=self._bounds
        )
        return desired
