"""Signals of a pool from heartbeats and gateway reports, as the autoscaling decision reads them.

    counts                from replicas' last heartbeats, those that are not silent
    arrivals, waits, …    from the gateways' sums; None where no gateway has spoken lately, never zero
    utilization           from replicas' token rates, see `PoolUse`; of a prefill pool, from how long its engines read

A pool that gateways tell of and nobody asks anything of has a time to first token of 0: nobody waits. That is known,
unlike a pool of which nobody tells.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp

from functions.decisions.autoscaling.policy import STALE_S
from functions.decisions.autoscaling.signals import PoolSignals, step_utilization
from functions.fleet.heartbeat import SILENCE_LIMIT_S
from functions.fleet.pool_board import PoolReport, PoolSum, ReplicaReport

# Utilization of a pool, remembered from one look to the next.
#
# Utilization is `decisions.autoscaling.signals`': of the time in which an engine has something to do, the part that
# somebody brought. What a stream gets with nothing beside it is not told by an engine; it is learnt from replicas that
# have had no more than one request at every look for 5 seconds. So `step / itl` is `rate now / rate alone`, averaged
# over replicas and smoothed over half a minute:
#
#     now  = mean over ready replicas of: 0 where nothing runs or waits, else 1 - rate / rate alone
#     used = used + (1 - e^(-dt / 30 s)) x (now - used)
#
# Worked example (test_worked_example_of_utilization): a stream alone makes 100 tokens a second. Of two replicas one is
# idle, the other makes 25 tokens a second a stream: (0 + 0.75) / 2 = 0.375.
#
#     rate alone     rises within half a minute of seeing more, at most to the double of what is known at one look, and
#                    falls within half an hour of seeing less: one odd heartbeat moves it by a few percent, and what
#                    no replica is alone to contradict stays. Any stream that is quicker raises it as well
#     not measured   a replica that is busy and had no gap between tokens in this look counts as at its last rate, for
#                    up to STALE_S, then as fully used. That is a bound, good for a probe that a look has caught; where
#                    a tenth of the replicas or more were so in the last half minute, the look says nothing
#     not known      until a replica was seen alone, busy replicas are not measured. A look that says nothing leaves
#                    the former value, which is dropped once it is older than STALE_S
#
#     reads          an engine of a prefill pool makes one token a request, and no gap: its use is the share of time in
#                    which it read, which is linear in the load there (`health.pace`'s busy_ratio)
#
# Worked example (test_a_prefill_pool_is_used_for_as_long_as_it_reads): of two replicas one reads for six tenths of the
# time, the other for two: 0.4.
#
# Worked example (test_an_engine_without_tokens_is_not_taken_for_an_idle_one): of four replicas three embed, which makes
# no tokens: 0.75 are not measured, and nothing is known, also at a look that finds all four between two requests.


SMOOTH_S = 30.0
ALONE_S = 5.0  # so long not more than one request: then its rate is that of nothing beside it
RISE_S = 30.0
FALL_S = 1800.0
MOST_UNMEASURED_RATIO = 0.1
_MOST_RISE = 2.0  # of what is known, by one look
_FRESH_S = 5.0  # a heartbeat older than this says where a replica is, not what it does


@dataclass(frozen=True, slots=True)
class Rate:
    tokens_per_s: float  # of one stream
    at_s: float


@dataclass(frozen=True, slots=True)
class PoolUse:
    """What is remembered of a pool from one look to the next."""

    alone_tokens_per_s: float = 0.0  # of one stream with nothing beside it; 0: not known
    utilization_ratio: float | None = None
    at_s: float | None = None  # of the utilization
    looked_s: float | None = None
    unmeasured_ratio: float | None = None  # of the ready replicas: busy, and how fast was not told; smoothed
    calm_since_s: Mapping[str, float] = field(default_factory=dict)  # by replica: not more than one request since then
    rates: Mapping[str, Rate] = field(default_factory=dict)  # by replica, the last


def observe(use: PoolUse, replicas: Sequence[ReplicaReport], at_s: float, *, reads: bool = False) -> PoolUse:
    """One look more. `reads`: it is a prefill pool."""
    fresh = [each for each in replicas if each.phase == "ready" and each.age_s < _FRESH_S]
    calm_since_s = {each.replica_id: use.calm_since_s.get(each.replica_id, at_s) for each in fresh if _is_calm(each)}
    alone = [each for each in fresh if at_s - calm_since_s.get(each.replica_id, at_s) >= ALONE_S]
    since_s = max(0.0, at_s - use.looked_s) if use.looked_s is not None else 0.0
    best = _alone_tokens_per_s(use.alone_tokens_per_s, alone, fresh, min(since_s, _FRESH_S))
    rates = {each.replica_id: rate for each in fresh if (rate := _rate(use, each, at_s)) is not None}
    used = [_used_reading(each) if reads else _used(each, best, rates) for each in fresh]
    unmeasured = _toward(use.unmeasured_ratio, used.count(None) / len(used) if used else None, since_s)
    now = None
    if used and unmeasured is not None and unmeasured < MOST_UNMEASURED_RATIO:
        now = sum(1.0 if each is None else each for each in used) / len(used)
    before = use.utilization_ratio if use.at_s is not None and at_s - use.at_s <= STALE_S else None
    ratio = _toward(before, now, since_s)
    ratio_s = at_s if now is not None else use.at_s
    return PoolUse(best, ratio, ratio_s, at_s, unmeasured, calm_since_s, rates)


def _is_calm(replica: ReplicaReport) -> bool:
    return replica.running <= 1 and not replica.waiting


def _is_idle(replica: ReplicaReport) -> bool:
    return not replica.running and not replica.waiting


def _rate(use: PoolUse, replica: ReplicaReport, at_s: float) -> Rate | None:
    """What was measured now, or lately."""
    if replica.decode_tokens_per_s > 0.0:
        return Rate(replica.decode_tokens_per_s, at_s)
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


def _used(replica: ReplicaReport, alone_tokens_per_s: float, rates: Mapping[str, Rate]) -> float | None:
    """None: it is busy, and how much so is not known."""
    if _is_idle(replica):
        return 0.0
    rate = rates.get(replica.replica_id)
    if rate is None or alone_tokens_per_s <= 0.0:
        return None
    return step_utilization(1.0 / alone_tokens_per_s, 1.0 / rate.tokens_per_s, 1.0)


def _used_reading(replica: ReplicaReport) -> float | None:
    busy_ratio = replica.pace.busy_ratio if replica.pace is not None else None
    return 0.0 if busy_ratio is None and _is_idle(replica) else busy_ratio


def _toward(before: float | None, now: float | None, since_s: float) -> float | None:
    """Smoothed. Time at which nothing was measured is not the next measurement's: `since_s` is since the last look."""
    if before is None or now is None:
        return before if now is None else now
    return before + (1.0 - exp(-since_s / SMOOTH_S)) * (now - before)


def replicas_of(report: PoolReport, pool: str) -> list[ReplicaReport]:
    """Those that are neither silent nor suspected with their node or zone."""
    return [
        each for each in report.replicas if each.pool == pool and each.age_s < SILENCE_LIMIT_S and not each.suspected
    ]


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
        ttft_p95_s=_waited(told, told.ttft_p95_s) if told else None,
        ttft_p99_s=_waited(told, told.ttft_p99_s) if told else None,
        itl_p95_s=_waited(told, told.gap_p95_s) if told else None,
        itl_p99_s=_waited(told, told.gap_p99_s) if told else None,
        kv_usage_ratio=max((each.kv_usage_ratio for each in ready), default=None),
        utilization_ratio=use.utilization_ratio,
        shed_per_s=told.shed_per_s if told else None,
        overflow_per_s=told.overflow_per_s if told else None,
        degraded_per_s=told.degraded_per_s if told else None,
        waking=told.waking if told else 0,
        open_requests=told.open_requests if told else 0,
    )


def _waited(told: PoolSum, value_s: float | None) -> float | None:
    return 0.0 if value_s is None and told.arrivals_per_s == 0.0 and told.queued_tokens == 0 else value_s
