"""Outlier status of replicas, derived from the results of requests. State exists only for replicas in trouble.

    out      ejected by evidence or as an outlier, or on probation with its probe under way
    probed   the replicas in `out` whose probe is under way. Requests without another choice go there as well
    resting  full, and it has said how long to avoid it: it receives nothing in that time, not even in panic
    suspected   with their node or zone (`functions.decisions.health.failure_domains`), which the view knows
    panic    more than PANIC_RATIO of a pool's ready replicas are out: then none is out, because evidence against
             most is more often about the network or the load; those replicas only count as slower

Sending to a pool that seems dead costs one failed attempt; not sending may leave it dead forever. Worked example
(test_most_of_a_pool_is_never_out): with two of four out, two are out; with three, none is, and those three are
REFUSAL_MS slower than the fourth.

Neighbours: `view` owns a tracker and knows which replicas are ready; `functions.decisions.health.ejection` decides.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from functions.api.ids import PoolName, ReplicaId
from functions.decisions.health.ejection import INTERVAL_S, REFUSAL_MS, Breaker, RequestCounts, outliers
from functions.decisions.routing.request import NO_PENALTIES

PANIC_RATIO = 0.5


@dataclass(frozen=True, slots=True)
class OutlierStatus:
    """Status of one pool at one moment."""

    out: frozenset[ReplicaId] = frozenset()
    penalties_ms: Mapping[ReplicaId, float] = field(default_factory=lambda: NO_PENALTIES)
    resting_s: Mapping[ReplicaId, float] = field(default_factory=lambda: NO_PENALTIES)  # remaining seconds
    panic: bool = False
    probed: frozenset[ReplicaId] = frozenset()  # replicas in `out` whose probe is under way
    # suspected with their node or zone: avoided while others can take a request
    suspected: frozenset[ReplicaId] = frozenset()


@dataclass(slots=True)
class OutlierTracker:
    """Track outliers of all pools. Owned by one event loop. All times are monotonic seconds."""

    # empty while no replica has failed
    troubled: dict[PoolName, dict[ReplicaId, Breaker]] = field(default_factory=dict)
    _as_outliers: set[ReplicaId] = field(default_factory=set)
    _seen: dict[PoolName, dict[ReplicaId, RequestCounts]] = field(default_factory=dict)
    _judged_s: float = float("-inf")
    _all_well: OutlierStatus = field(default_factory=OutlierStatus)

    def breaker(self, pool: PoolName, replica_id: ReplicaId) -> Breaker:
        """Return the breaker that records failures of a replica; create it if there is none."""
        return self.troubled.setdefault(pool, {}).setdefault(replica_id, Breaker())

    def record_sent(self, pool: PoolName, replica_id: ReplicaId, now_s: float) -> None:
        if (breaker := self._known(pool, replica_id)) is not None:
            breaker.sent(now_s)

    def record_answer(self, pool: PoolName, replica_id: ReplicaId, sent_s: float, now_s: float) -> None:
        if (breaker := self._known(pool, replica_id)) is not None:
            breaker.answered(sent_s, now_s)

    def forget(self, pool: PoolName, replica_id: ReplicaId) -> None:
        """Forget a replica that is gone or whose name another one has taken."""
        self._seen.get(pool, {}).pop(replica_id, None)
        self._as_outliers.discard(replica_id)
        troubled = self.troubled.get(pool)
        if troubled is not None and troubled.pop(replica_id, None) is not None and not troubled:
            del self.troubled[pool]

    def pool_status(self, pool: PoolName, ready: Collection[ReplicaId], now_s: float) -> OutlierStatus:
        """Return the pool's ejected replicas, penalties and rests. If more than PANIC_RATIO of the `ready` replicas
        would be out, none is out (panic), and those only count as slower."""
        troubled = self.troubled.get(pool)
        if not troubled:
            return self._all_well
        out = frozenset(each for each, breaker in troubled.items() if each in ready and breaker.is_out(now_s))
        penalties = {each: ms for each, breaker in troubled.items() if (ms := breaker.penalty_ms(now_s))}
        resting = {
            each: rest_s for each, breaker in troubled.items() if each in ready and (rest_s := breaker.rest_s(now_s))
        }
        if len(out) <= PANIC_RATIO * len(ready):
            probed = frozenset(each for each in out if troubled[each].is_probed(now_s))
            return OutlierStatus(out, penalties, resting, probed=probed)
        return OutlierStatus(frozenset(), penalties | dict.fromkeys(out, REFUSAL_MS), resting, panic=True)

    # Comparison of replicas.

    def request_counts(self, pool: PoolName, replica_id: ReplicaId) -> RequestCounts:
        """Return the replica's request counters of the current interval; create them if there are none."""
        counts = self._seen.setdefault(pool, {})
        found = counts.get(replica_id)
        if found is None:
            found = counts[replica_id] = RequestCounts(replica_id)
        return found

    def eject_outliers(self, ready: Iterable[tuple[PoolName, int]], now_s: float) -> list[ReplicaId]:
        """Once per interval, eject the outliers of each pool and forget replicas that recovered long ago; between
        intervals do nothing. `ready`: number of ready replicas by pool. Return the replicas ejected now."""
        if now_s - self._judged_s < INTERVAL_S:
            return []
        self._judged_s = now_s
        self._forget_recovered(now_s)
        ejected = []
        for pool, replicas in ready:
            counts = self._seen.pop(pool, {})
            out_already = sum(each in self._as_outliers for each in self.troubled.get(pool, ()))
            for replica_id in outliers(list(counts.values()), replicas, out_already):
                self.breaker(pool, replica_id).eject(now_s)
                self._as_outliers.add(replica_id)
                ejected.append(replica_id)
        self._seen.clear()
        return ejected

    def _forget_recovered(self, now_s: float) -> None:
        for pool, troubled in list(self.troubled.items()):
            for replica_id, breaker in list(troubled.items()):
                if not breaker.is_out(now_s):
                    self._as_outliers.discard(replica_id)
                if breaker.is_forgotten(now_s):
                    del troubled[replica_id]
            if not troubled:
                del self.troubled[pool]

    def _known(self, pool: PoolName, replica_id: ReplicaId) -> Breaker | None:
        troubled = self.troubled.get(pool)
        return troubled.get(replica_id) if troubled is not None else None
