"""Autoscalers behind one interface: each receives the same signals and returns a number of replicas.

    shoal       `decisions.autoscaling.decide` with its forecast, unchanged
    reactive    the same without seasons and trends: only the present demand
    rules       the policy's rules alone
    static      always the same: the replicas for the day's peak
    oracle      knows the future (`oracle`)
    hpa, kpa    other systems' autoscalers (`others`)

A scaler has a state and belongs to one run. Neighbours: `fluid_pool` and `fleet_run` call them.
"""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from functions.decisions.autoscaling.signals import PoolSignals
from studies.scaling.others import Bounds, HpaState, KpaState, hpa, kpa

ScalerName = Literal["shoal", "reactive", "rules", "static", "oracle", "hpa", "kpa"]


class Scaler(Protocol):
    def decide_replicas(self, signals: PoolSignals, now_s: float) -> int:
        """Return the number of replicas that there should be, including starting ones."""


class StaticScaler:
    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    def decide_replicas(self, signals: PoolSignals, now_s: float) -> int:
        return self._replicas


class PlannedScaler:
    """Follow a plan of ready replicas made in advance; starts are requested ahead by the start-up time."""

    def __init__(self, plan: Sequence[int], step_s: float, startup_s: float) -> None:
        self._plan = plan
        self._step_s = step_s
        self._startup_s = startup_s

    def decide_replicas(self, signals: PoolSignals, now_s: float) -> int:
        first = int(now_s / self._step_s)
        last = int((now_s + self._startup_s) / self._step_s) + 1
        return max(self._plan[first : last + 1], default=self._plan[-1])


class HpaScaler:
    def __init__(self, target_per_s: float, bounds: Bounds) -> None:
        self._state = HpaState()
        self._target_per_s = target_per_s
        self._bounds = bounds

    def decide_replicas(self, signals: PoolSignals, now_s: float) -> int:
        self._state, desired = hpa(self._state, signals, now_s, target_per_s=self._target_per_s, bounds=self._bounds)
        return desired


class KpaScaler:
    """Knative's autoscaler. `under_way` counts the pool's requests: Knative reads its queue proxies, not a gateway."""

    def __init__(self, target: float, bounds: Bounds, under_way: Callable[[], float]) -> None:
        self._state = KpaState()
        self._target = target
        self._bounds = bounds
        self._under_way = under_way

    def decide_replicas(self, signals: PoolSignals, now_s: float) -> int:
        self._state, desired = kpa(
            self._state, signals, self._under_way(), now_s, target=self._target, bounds=self._bounds
        )
        return desired
