"""A clairvoyant autoscaler: the fewest replicas that meet the targets if all arrivals are known. Pure functions.

The day is cut into minutes. Each gets the replicas needed at a utilization, and the utilization is the highest with
which the day still meets its targets, found by bisection:

    needed(minute)   = max( interactive work a second in the fullest 15 s, all work a second, batch spread over the
                       five minutes around ) / utilization, rounded up

It starts replicas ahead of time and pays for their start-up like the others. It removes them when they are not
needed, unless they would be needed again within the start-up time: stopping them would not save anything. Worked
example (test_worked_example_of_the_oracle): 15 s with 20, 26 and 23 s of interactive work a second in a minute, and 4
of batch in the minutes around: max(26, 22 + 4) / 0.8 = 32.5, 33 replicas.

Neighbours: `load` is its input, `scaler.PlannedScaler` carries it out.
"""

from collections.abc import Callable, Sequence
from math import ceil

import numpy as np

from studies.scaling.load import Load

STEP_S = 60
WINDOW_S = 15
_SPREAD_STEPS = 5
_HALVINGS = 7
_LEAST_RATIO, _MOST_RATIO = 0.4, 1.0


def plan(load: Load, utilization_ratio: float, startup_s: float) -> list[int]:
    """Return the replicas that should be ready in each step."""
    steps = load.seconds // STEP_S
    whole = slice(0, steps * STEP_S)
    windows = load.soon[2, whole].reshape(steps, STEP_S // WINDOW_S, WINDOW_S).mean(axis=2)
    later = np.convolve(
        np.pad(load.later[2, whole].reshape(steps, STEP_S).mean(axis=1), _SPREAD_STEPS // 2, mode="edge"),
        np.full(_SPREAD_STEPS, 1 / _SPREAD_STEPS),
        mode="valid",
    )
    most = np.maximum(windows.max(axis=1), windows.mean(axis=1) + later)
    needed = [max(1, ceil(work / utilization_ratio - 1e-9)) for work in most.tolist()]
    return _without_gaps(needed, max(1, round(startup_s / STEP_S)))


def best_utilization(keeps: Callable[[float], bool]) -> float:
    """Return the highest utilization that meets the targets; `keeps` tests one."""
    low, high = _LEAST_RATIO, _MOST_RATIO
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def _without_gaps(needed: Sequence[int], gap_steps: int) -> list[int]:
    """Fill dips that are too short for a replica to stop and start: a morphological closing of the curve."""
    values = np.array(needed)
    span = gap_steps + 1
    padded = np.pad(values, (span, span), mode="edge")
    widened = np.array([padded[index : index + span].max() for index in range(len(padded) - span + 1)])
    closed = np.array([widened[index : index + span].min() for index in range(len(widened) - span + 1)])
    start = (len(closed) - len(values)) // 2
    return [int(value) for value in np.maximum(values, closed[start : start + len(values)])]
