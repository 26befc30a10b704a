"""What a scaler has learnt before the day begins: earlier days of the same workload, looked at once a minute.

Neighbours: `decisions.autoscaling.forecast` learns; `day` begins with what it knows.
"""

from math import ceil

from functions.decisions.autoscaling.forecast import Demand, learn
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.decisions.autoscaling.signals import PoolSignals
from functions.simulator.scaling.load import Load

_LOOK_S = 15
_AT_RATIO = 0.75  # how full the pool of those days is taken to have been


def learnt(demand: Demand, policy: ScalePolicy, load: Load, begins_s: float) -> Demand:
    """`load` from `begins_s` on, in the time of the day that follows: usually below 0."""
    seconds = load.seconds // _LOOK_S * _LOOK_S
    rows = (load.tokens, load.later[1], load.work_s)
    looks = [row[:seconds].reshape(-1, _LOOK_S).mean(axis=1).tolist() for row in rows]
    for index, (tokens_per_s, later_per_s, work_s) in enumerate(zip(*looks, strict=True)):
        ready = max(1, ceil(work_s / _AT_RATIO))
        signals = PoolSignals(
            at_s=begins_s + (index + 1) * _LOOK_S,
            ready=ready,
            arriving_tokens_per_s=tokens_per_s,
            deferrable_tokens_per_s=later_per_s,
            utilization_ratio=work_s / ready,
        )
        demand = learn(demand, signals, policy)
    return demand
