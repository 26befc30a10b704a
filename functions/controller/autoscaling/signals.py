"""What beats and gateways have told of a pool, as the decision on its size wants it: pure.

    counts                from replicas' last beats, those that are not silent
    arrivals, waits, …    from the gateways' sums; None where no gateway has spoken lately, never zero
    utilization           from replicas' token rates, see `use`

A pool that gateways tell of and nobody asks anything of has a time to first token of 0: nobody waits. That is known,
unlike a pool of which nobody tells.
"""

from collections.abc import Sequence

from functions.controller.autoscaling.use import PoolUse
from functions.decisions.autoscaling.signals import PoolSignals
from functions.fleet.heartbeat import SILENCE_LIMIT_S
from functions.fleet.pool_board import PoolSum
from functions.fleet.pool_report import PoolReport, ReplicaReport


def replicas_of(report: PoolReport, pool: str) -> list[ReplicaReport]:
    """Those that are not silent."""
    return [each for each in report.replicas if each.pool == pool and each.age_s < SILENCE_LIMIT_S]


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
        foreground_queued_tokens=told.foreground_queued_tokens if told else None,
        ttft_p50_s=_waited(told, told.ttft_p50_s) if told else None,
        ttft_p99_s=_waited(told, told.ttft_p99_s) if told else None,
        itl_p99_s=_waited(told, told.gap_p99_s) if told else None,
        kv_usage_ratio=max((each.kv_usage_ratio for each in ready), default=None),
        utilization_ratio=use.utilization_ratio,
        shed_per_s=told.shed_per_s if told else None,
        overflow_per_s=told.overflow_per_s if told else None,
        degraded_per_s=told.degraded_per_s if told else None,
    )


def _waited(told: PoolSum, value_s: float | None) -> float | None:
    return 0.0 if value_s is None and told.arrivals_per_s == 0.0 and told.queued_tokens == 0 else value_s
