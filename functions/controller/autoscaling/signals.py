"""Signals of a pool from heartbeats and gateway reports, as the autoscaling decision reads them.

    counts                from the last heartbeats of replicas that are not silent
    arrivals, waits, …    from the sums over gateways; None (never zero) if no gateway has reported lately
    utilization           from replicas' token rates, see `PoolUtilization`; of a prefill pool, from engines' busy time

If gateways report on a pool without requests, its time to first token is 0: no request waits. If no gateway reports
on a pool, the value is unknown (None).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp

from functions.decisions.autoscaling.policy import STALE_S
from functions.decisions.autoscaling.signals import PoolSignals, step_utilization
from functions.fleet.heartbeat import SILENCE_LIMIT_S
from functions.fleet.pool_board import PoolReport, PoolSum, ReplicaReport

# Utilization of a pool, remembered from one observation to the next.
#
# Utilization is defined in `decisions.autoscaling.signals`: the share of an engine's busy time that the load causes.
# Engines do not report how fast a single stream is with no other beside it. This rate is learnt from replicas that had
# at most one request in every observation for 5 seconds. So `step / itl` is `rate now / rate alone`, averaged over
# replicas and smoothed over half a minute:
#
#     now  = mean over ready replicas of: 0 if nothing runs or waits, else 1 - rate / rate alone
#     used = used + (1 - e^(-dt / 30 s)) x (now - used)
#
# Worked example (test_worked_example_of_utilization): a single stream makes 100 tokens a second. Of two replicas one
# is idle, the other makes 25 tokens a second per stream: (0 + 0.75) / 2 = 0.375.
#
#     rate alone     rises within half a minute of a higher rate, at most to double the known rate in one observation,
#                    and falls within half an hour of a lower one. So one odd heartbeat moves it by a few percent only,
#                    and it stays while no replica runs a single stream. A faster stream among others raises it too
#     not measured   a busy replica without a gap between tokens in this observation counts with its last rate for up
#                    to STALE_S, then as fully used: an upper bound, good enough if an observation meets a probe.
#                    If a tenth or more of the replicas were unmeasured in the last half minute, nothing is concluded
#     not known      busy replicas are not measured until a replica has run a single stream. An observation without a
#                    conclusion leaves the former value, which is dropped once it is older than STALE_S
#
#     prefill        an engine of a prefill pool makes one token per request, without a gap. Its utilization is the
#                    time share in which it computes prompts, which is linear in its load (`health.pace`'s busy_ratio)
#
# Worked example (test_prefill_pool_utilization_is_its_busy_ratio): of two replicas one computes prompts for six
# tenths of the time, the other for two: 0.4.
#
# Worked example (test_engine_without_tokens_does_not_count_as_idle): of four replicas three embed, which
# makes no tokens: 0.75 are unmeasured and utilization is unknown, even if all four are between two requests when
# observed.


SMOOTH_S = 30.0
ALONE_S = 5.0  # time with at most one request, after which the rate is that of a single stream
RISE_S = 30.0
FALL_S = 1800.0
MOST_UNMEASURED_RATIO = 0.1
_MOST_RISE = 2.0  # limit of the rise in one observation, as a multiple of the known rate
_FRESH_S = 5.0  # an older heartbeat shows where a replica is, not what it does


@dataclass(frozen=True, slots=True)
class DecodeRate:
    tokens_per_s: float  # one stream's rate
    at_s: float


@dataclass(frozen=True, slots=True)
class PoolUtilization:
    alone_tokens_per_s: float = 0.0  # rate of a single stream; 0: unknown
    utilization_ratio: float | None = None
    at_s: float | None = None  # time of the utilization
    looked_s: float | None = None
    unmeasured_ratio: float | None = None  # smoothed share of ready replicas that are busy at an unknown rate
    # start of the time with at most one request, by replica
    calm_since_s: Mapping[str, float] = field(default_factory=dict)
    rates: Mapping[str, DecodeRate] = field(default_factory=dict)  # last rate by replica


def update_utilization(
    use: PoolUtilization, replicas: Sequence[ReplicaReport], at_s: float, *, reads: bool = False
) -> PoolUtilization:
    """Return the state after one more observation. `reads`: the pool is a prefill pool."""
    fresh = [each for each in replicas if each.phase == "ready" and each.age_s < _FRESH_S]
    calm_since_s = {each.replica_id: use.calm_since_s.get(each.replica_id, at_s) for each in fresh if _is_calm(each)}
    alone = [each for each in fresh if at_s - calm_since_s.get(each.replica_id, at_s) >= ALONE_S]
    since_s = max(0.0, at_s - use.looked_s) if use.looked_s is not None else 0.0
    best = _alone_tokens_per_s(use.alone_tokens_per_s, alone, fresh, min(since_s, _FRESH_S))
    rates = {each.replica_id: rate for each in fresh if (rate := _rate(use, each, at_s)) is not None}
    used = [_prefill_utilization(each) if reads else _decode_utilization(each, best, rates) for each in fresh]
    unmeasured = _smooth(use.unmeasured_ratio, used.count(None) / len(used) if used else None, since_s)
    now = None
    if used and unmeasured is not None and unmeasured < MOST_UNMEASURED_RATIO:
        now = sum(1.0 if each is None else each for each in used) / len(used)
    before = use.utilization_ratio if use.at_s is not None and at_s - use.at_s <= STALE_S else None
    ratio = _smooth(before, now, since_s)
    ratio_s = at_s if now is not None else use.at_s
    return PoolUtilization(best, ratio, ratio_s, at_s, unmeasured, calm_since_s, rates)


def _is_calm(replica: ReplicaReport) -> bool:
    return replica.running <= 1 and not replica.waiting


def _is_idle(replica: ReplicaReport) -> bool:
    return not replica.running and not replica.waiting


def _rate(use: PoolUtilization, replica: ReplicaReport, at_s: float) -> DecodeRate | None:
    """Return the replica's present decode rate, or its last one if that is at most STALE_S old, or None."""
    if replica.decode_tokens_per_s > 0.0:
        return DecodeRate(replica.decode_tokens_per_s, at_s)
    former = use.rates.get(replica.replica_id)
    return former if former is not None and at_s - former.at_s <= STALE_S else None


def _alone_tokens_per_s(
    known: float, alone: Sequence[ReplicaReport], fresh: Sequence[ReplicaReport], since_s: float
) -> float:
    seen = max((each.decode_tokens_per_s for each in alone if each.running == 1), default=0.0)
    if known <= 0.0:
        return seen
    quickest = max((each.decode_tokens_per_s for each in fresh), default=0.0)
    toward = min(max(seen, quickest), known * _MOST_RISE) if quickest > known else seen
    if toward <= 0.0:
        return known
    part = 1.0 - exp(-since_s / (RISE_S if toward > known else FALL_S))
    return known + part * (toward - known)


def _decode_utilization(
    replica: ReplicaReport, alone_tokens_per_s: float, rates: Mapping[str, DecodeRate]
) -> float | None:
    """Return the utilization of one decode replica, 0 if it is idle; None if it is busy at an unknown rate or the rate
    of a single stream is unknown."""
    if _is_idle(replica):
        return 0.0
    rate = rates.get(replica.replica_id)
    if rate is None or alone_tokens_per_s <= 0.0:
        return None
    return step_utilization(1.0 / alone_tokens_per_s, 1.0 / rate.tokens_per_s, 1.0)


def _prefill_utilization(replica: ReplicaReport) -> float | None:
    busy_ratio = replica.pace.busy_ratio if replica.pace is not None else None
    return 0.0 if busy_ratio is None and _is_idle(replica) else busy_ratio


def _smooth(before: float | None, now: float | None, since_s: float) -> float | None:
    """Return `before` moved towards `now` by the weight of `since_s`; if one of them is None, return the other.
    `since_s` is the time since the last observation, so time without measurements is not counted."""
    if before is None or now is None:
        return before if now is None else now
    return before + (1.0 - exp(-since_s / SMOOTH_S)) * (now - before)


def replicas_of(report: PoolReport, pool: str) -> list[ReplicaReport]:
    """Return the pool's replicas that are neither silent nor suspected with their node or zone."""
    return [
        each for each in report.replicas if each.pool == pool and each.age_s < SILENCE_LIMIT_S and not each.suspected
    ]


def pool_signals(
    replicas: Sequence[ReplicaReport], told: PoolSum | None, use: PoolUtilization, at_s: float
) -> PoolSignals:
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
        ttft_p50_s=_wait_or_zero(told, told.ttft_p50_s) if told else None,
        ttft_p95_s=_wait_or_zero(told, told.ttft_p95_s) if told else None,
        ttft_p99_s=_wait_or_zero(told, told.ttft_p99_s) if told else None,
        itl_p95_s=_wait_or_zero(told, told.gap_p95_s) if told else None,
        itl_p99_s=_wait_or_zero(told, told.gap_p99_s) if told else None,
        kv_usage_ratio=max((each.kv_usage_ratio for each in ready), default=None),
        utilization_ratio=use.utilization_ratio,
        shed_per_s=told.shed_per_s if told else None,
        overflow_per_s=told.overflow_per_s if told else None,
        degraded_per_s=told.degraded_per_s if told else None,
        waking=told.waking if told else 0,
        open_requests=told.open_requests if told else 0,
    )


def _wait_or_zero(told: PoolSum, value_s: float | None) -> float | None:
    return 0.0 if value_s is None and told.arrivals_per_s == 0.0 and told.queued_tokens == 0 else value_s
