"""What beats and gateways have told of a pool, as the decision on its size wants it: pure.

    counts                from replicas' last beats, those that are not silent
    arrivals, waits, …    from the gateways' sums; None where no gateway has spoken lately, never zero
    utilization           from replicas' token rates, see below

A pool that gateways tell of and nobody asks anything of has a time to first token of 0: nobody waits. That is known,
unlike a pool of which nobody tells.

Utilization is `decisions.pool_signals`': of the time in which an engine has something to do, the part that somebody
brought. The time between tokens with nothing beside it is not told by an engine; it is the shortest that was seen of
the pool's replicas, so `step / itl` is `rate now / best rate`. Averaged over replicas and smoothed over half a minute:

    now  = mean over ready replicas of: 0 where nothing runs or waits, else 1 - rate / best rate
    used = used + (1 - e^(-dt / 30 s)) x (now - used)

Worked example (test_worked_example_of_utilization): the best rate seen is 100 tokens a second. Of two replicas one is
idle, the other makes 25 tokens a second a stream: (0 + 0.75) / 2 = 0.375.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from functions.decisions.pool_signals import PoolSignals, step_utilization
from functions.fleet.heartbeat import SILENCE_LIMIT_S
from functions.fleet.pool_board import PoolSum
from functions.fleet.pool_report import PoolReport, ReplicaReport

SMOOTH_S = 30.0
_FRESH_S = 5.0  # a beat older than this says where a replica is, not what it does


@dataclass(frozen=True, slots=True)
class PoolUse:
    """What is remembered of a pool from one look to the next."""

    best_tokens_per_s: float = 0.0  # of one stream, seen at any replica
    utilization_ratio: float | None = None
    at_s: float | None = None


def replicas_of(report: PoolReport, pool: str) -> list[ReplicaReport]:
    """Those that are not silent."""
    return [each for each in report.replicas if each.pool == pool and each.age_s < SILENCE_LIMIT_S]


def observe(use: PoolUse, replicas: Sequence[ReplicaReport], at_s: float) -> PoolUse:
    """One look more."""
    fresh = [each for each in replicas if each.phase == "ready" and each.age_s < _FRESH_S]
    best = max([use.best_tokens_per_s, *(each.decode_tokens_per_s for each in fresh)])
    known = [used for each in fresh if (used := _used(each, best)) is not None]
    if not known:
        return PoolUse(best, use.utilization_ratio, use.at_s)
    now = sum(known) / len(known)
    if use.utilization_ratio is None or use.at_s is None:
        return PoolUse(best, now, at_s)
    part = 1.0 - exp(-max(0.0, at_s - use.at_s) / SMOOTH_S)
    return PoolUse(best, use.utilization_ratio + part * (now - use.utilization_ratio), at_s)


def pool_signals(replicas: Sequence[ReplicaReport], told: PoolSum | None, use: PoolUse, at_s: float) -> PoolSignals:
    phases = [each.phase for each in replicas]
    ready = [each for each in replicas if each.phase == "ready"]
    return PoolSignals(
        at_s=at_s,
        ready=phases.count("ready"),
        starting=phases.count("starting"),
        warm=phases.count("warm"),
        draining=phases.count("draining"),
        arrivals_per_s=told.arrivals_per_s if told else None,
        arriving_tokens_per_s=told.arriving_tokens_per_s if told else None,
        deferrable_tokens_per_s=told.deferrable_tokens_per_s if told else None,
        queue_seconds=told.queue_s if told else None,
        queued_tokens=told.queued_tokens if told else None,
        ttft_p50_s=_waited(told, told.ttft_p50_s) if told else None,
        ttft_p99_s=_waited(told, told.ttft_p99_s) if told else None,
        itl_p99_s=_waited(told, told.gap_p99_s) if told else None,
        kv_usage_ratio=max((each.kv_usage_ratio for each in ready), default=None),
        utilization_ratio=use.utilization_ratio,
        shed_per_s=told.shed_per_s if told else None,
        degraded_per_s=told.degraded_per_s if told else None,
    )


def _waited(told: PoolSum, value_s: float | None) -> float | None:
    return 0.0 if value_s is None and told.arrivals_per_s == 0.0 and told.queued_tokens == 0 else value_s


def _used(replica: ReplicaReport, best_tokens_per_s: float) -> float | None:
    """None: it is busy, and how fast its streams are was not measured."""
    if not replica.running and not replica.waiting:
        return 0.0
    if replica.decode_tokens_per_s <= 0.0 or best_tokens_per_s <= 0.0:
        return None
    return step_utilization(1.0 / best_tokens_per_s, 1.0 / replica.decode_tokens_per_s, 1.0)
