"""Other autoscalers from their own descriptions, as pure decisions over the same signals.

    HPA     wanted = ceil(replicas x measured / target), ignoring a deviation of up to 10 %; every 15 s; up at most by
            100 % or 4 replicas in 15 s, whichever is more; down to the maximum wanted in the last 5 minutes
            (Kubernetes' HorizontalPodAutoscaler with its defaults, on requests a second and replica)
    KPA     stable: mean of 60 s / target; panic: mean of 6 s / target, while that is 200 % of the ready replicas and
            for 60 s after, and then never down; up at most 1,000 x, down at most by half every 2 s
            (Knative's autoscaler with its defaults, on requests in flight a replica)

Starting replicas count for HPA's bounds and not for its mean, like pods that are not ready. Worked example
(test_worked_examples_of_hpa): 10 replicas with a target of 3.2 a second each receive 50: HPA wants ceil(50 / 3.2)
= 16.

Neighbours: `scaler` makes them interchangeable with shoal's own.
"""

from dataclasses import dataclass
from math import ceil

from functions.decisions.autoscaling.signals import PoolSignals

_TOLERANCE = 0.1
_HPA_PERIOD_S = 15.0
_HPA_STABLE_S = 300.0
_HPA_UP_REPLICAS = 4
_STABLE_S = 60.0
_PANIC_S = 6.0
_PANIC_RATIO = 2.0
_UP_MOST = 1000.0
_DOWN_MOST = 2.0


@dataclass(frozen=True, slots=True)
class HpaState:
    desired: int | None = None
    decided_s: float = float("-inf")
    wanted: tuple[tuple[float, int], ...] = ()  # last five minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    least: int
    most: int

    def within(self, wanted: int) -> int:
        return min(self.most, max(self.least, wanted))


def hpa(
    state: HpaState, signals: PoolSignals, now_s: float, *, target_per_s: float, bounds: Bounds
) -> tuple[HpaState, int]:
    """Decide as HPA. `target_per_s`: requests a second that a replica should receive."""
    current = state.desired if state.desired is not None else max(1, signals.committed)
    if now_s - state.decided_s < _HPA_PERIOD_S or signals.arrivals_per_s is None:
        return HpaState(current, state.decided_s, state.wanted), current
    ratio = signals.arrivals_per_s / (current * target_per_s)
    wanted = current if abs(ratio - 1.0) <= _TOLERANCE else ceil(signals.arrivals_per_s / target_per_s - 1e-9)
    recent = (*(entry for entry in state.wanted if now_s - entry[0] < _HPA_STABLE_S), (now_s, wanted))
    if wanted > current:
        desired = min(wanted, max(2 * current, current + _HPA_UP_REPLICAS))
    else:
        desired = min(current, max(entry[1] for entry in recent))
    desired = bounds.within(desired)
    return HpaState(desired, now_s, recent), desired


@dataclass(frozen=True, slots=True)
class KpaState:
    desired: int | None = None
    under_way: tuple[tuple[float, float], ...] = ()  # last minute
    panic_until_s: float = float("-inf")


def kpa(
    state: KpaState, signals: PoolSignals, under_way: float, now_s: float, *, target: float, bounds: Bounds
) -> tuple[KpaState, int]:
    """Decide as KPA. `under_way`: requests in the pool, with waiting ones; `target`: the number for one replica."""
    current = state.desired if state.desired is not None else max(1, signals.committed)
    seen = (*(entry for entry in state.under_way if now_s - entry[0] < _STABLE_S), (now_s, under_way))
    stable = _mean([value for _, value in seen])
    panic = _mean([value for at_s, value in seen if now_s - at_s < _PANIC_S])
    ready = max(1, signals.ready)
    floor, ceiling = ceil(ready / _DOWN_MOST), ceil(ready * _UP_MOST)
    wanted_stable = min(ceiling, max(floor, ceil(stable / target)))
    wanted_panic = min(ceiling, max(floor, ceil(panic / target)))
    until_s = now_s + _STABLE_S if wanted_panic / ready >= _PANIC_RATIO else state.panic_until_s
    desired = max(current, wanted_panic) if now_s < until_s else wanted_stable
    desired = bounds.within(desired)
    return KpaState(desired, seen, until_s), desired


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
