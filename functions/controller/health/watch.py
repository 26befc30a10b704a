"""Judge the fleet's health: from the registry's report to actions, verdicts and log lines.

    report ─► slow by itself, and the pool can spare it    drain and restart it (`decisions.health.slow_replica`)
           ─► its accelerator has failed                   it has taken itself out; on Kubernetes its node is tainted
           ─► suspected nodes and zones                    logged once each, not per replica

A report of a registry that receives no heartbeats is not judged. The state is lost with the process; a recent restart
is then recognised by the agent's age.

Neighbours: `local` and `functions.controller.kubernetes.run.health_reconciler` carry the decisions out.
"""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from functions.api.ids import PoolName, ReplicaId
from functions.decisions.health.slow_replica import (
    PoolState,
    PoolWatch,
    Seen,
    SlowPolicy,
    Verdict,
    record_restart,
    update_watch,
    verdict,
)
from functions.fleet.heartbeat import SILENCE_LIMIT_S
from functions.fleet.pool_board import PoolReport, PoolSum, ReplicaReport
from functions.fleet.verdicts import MAX_REPLICAS, WHY_MAX_CHARS, ReplicaTrouble

_UNSETTLED = frozenset({"starting", "draining", "hung", "dead"})
_MAX_POOLS = 4096

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SlowReplica:
    pool: PoolName
    replica_id: ReplicaId
    why: str


@dataclass(frozen=True, slots=True)
class FaultyReplica:
    pool: PoolName
    replica_id: ReplicaId
    node: str  # empty: unknown
    fault: str


@dataclass(frozen=True, slots=True)
class Judgement:
    restart: tuple[SlowReplica, ...] = ()
    faulty: tuple[FaultyReplica, ...] = ()
    troubles: tuple[ReplicaTrouble, ...] = ()


class FleetHealth:
    """Owned by one event loop."""

    def __init__(
        self,
        policy: SlowPolicy,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """With a policy whose `after_s` is 0, no replica is restarted for being slow."""
        self._policy = policy
        self._clock, self._wall_clock = clock, wall_clock
        self._pools: dict[PoolName, tuple[PoolWatch, PoolState]] = {}
        self._said: dict[str, str] = {}  # logged texts by subject
        self.slow_restarts: Counter[str] = Counter()  # by pool

    def step(self, report: PoolReport | None) -> Judgement:
        """Return the judgement of a new report, empty without a report or if the registry is not connected to the bus;
        call about once a second or less often."""
        if report is None or not report.bus_connected:
            return Judgement()
        present = [each for each in report.replicas if each.age_s < SILENCE_LIMIT_S]
        faulty = tuple(_faulty(each) for each in present if each.accelerator_fault)
        slow = self._slow(present, report.pools) if self._policy.after_s else {}
        restart = tuple(_slow(pool, found) for pool, found in sorted(slow.items()) if not found.held)
        troubles = tuple(self._troubles(slow, faulty))[:MAX_REPLICAS]
        self._log_changes(troubles, Counter(each.suspected for each in present if each.suspected))
        return Judgement(restart, faulty, troubles)

    def mark_restarting(self, replica: SlowReplica) -> None:
        """Record, count and log that the restart which the last judgement requested has started."""
        watch, state = self._pools[replica.pool]
        seen = next(each for each in state.ready if each.replica_id == replica.replica_id)
        self._pools[replica.pool] = record_restart(watch, seen, self._clock()), state
        self.slow_restarts[replica.pool] += 1
        _log.warning("%s: %s is drained and restarted: %s", replica.pool, replica.replica_id, replica.why)

    def _slow(self, present: Sequence[ReplicaReport], sums: Mapping[str, PoolSum]) -> dict[PoolName, Verdict]:
        now_s, now_unix_s = self._clock(), self._wall_clock()
        by_pool: dict[PoolName, list[ReplicaReport]] = defaultdict(list)
        for each in present:
            by_pool[PoolName(each.pool)].append(each)
        found: dict[PoolName, Verdict] = {}
        former, self._pools = self._pools, {}
        for pool, replicas in sorted(by_pool.items())[:_MAX_POOLS]:
            state = _state(pool, replicas, sums.get(pool))
            watch = update_watch(former[pool][0] if pool in former else PoolWatch(), state, now_s)
            self._pools[pool] = watch, state
            judged = verdict(watch, state, self._policy, now_s, now_unix_s)
            if judged is not None:
                found[pool] = judged
        return found

    def _troubles(self, slow: Mapping[PoolName, Verdict], faulty: Sequence[FaultyReplica]) -> list[ReplicaTrouble]:
        troubles = [
            ReplicaTrouble(each.pool, each.replica_id, "accelerator", "out", each.fault[:WHY_MAX_CHARS], node=each.node)
            for each in faulty
        ]
        for pool, found in slow.items():
            why, held = found.why[:WHY_MAX_CHARS], found.held[:WHY_MAX_CHARS]
            troubles.append(ReplicaTrouble(pool, found.replica_id, "slow", "held" if held else "restarting", why, held))
        for pool, (watch, _) in self._pools.items():
            if watch.under_way is not None:
                troubles.append(ReplicaTrouble(pool, watch.under_way.replica_id, "slow", "restarting"))
        return troubles

    def _log_changes(self, troubles: Sequence[ReplicaTrouble], suspected: Mapping[str, int]) -> None:
        """Log each new or changed trouble once, and each one that is resolved."""
        now = {f"{each.what} {each.replica_id}": _trouble_text(each) for each in troubles if each.why}
        now |= {domain: f"{domain} has fallen silent or is not ready" for domain in suspected}
        for subject, words in now.items():
            if self._said.get(subject) != words:
                _log.warning("%s%s", words, f": {suspected[subject]} replicas" if subject in suspected else "")
        for subject in self._said.keys() - now.keys():
            _log.info("%s: resolved", subject)
        self._said = now


def _trouble_text(trouble: ReplicaTrouble) -> str:
    """Return the trouble as text without figures that change with each report."""
    if trouble.what == "accelerator":
        where = f" on {trouble.node}" if trouble.node else ""
        return f"{trouble.replica_id}{where} is out: {trouble.why}"
    return f"{trouble.replica_id} is slow by itself" + (" and not restarted yet" if trouble.held else "")


def _faulty(replica: ReplicaReport) -> FaultyReplica:
    return FaultyReplica(PoolName(replica.pool), ReplicaId(replica.replica_id), replica.node, replica.accelerator_fault)


def _slow(pool: PoolName, found: Verdict) -> SlowReplica:
    return SlowReplica(pool, found.replica_id, found.why)


def _state(pool: PoolName, replicas: Sequence[ReplicaReport], told: PoolSum | None) -> PoolState:
    ready = tuple(
        Seen(ReplicaId(each.replica_id), each.pace, each.kv_usage_ratio, each.began_unix_ms / 1000)
        for each in replicas
        if each.phase == "ready"
    )
    return PoolState(
        pool,
        ready,
        unsettled=sum(each.phase in _UNSETTLED for each in replicas),
        suspected=sum(bool(each.suspected) for each in replicas),
        queue_s=told.queue_s if told is not None else 0.0,
        overloaded=told is not None and bool(told.rungs),
    )
