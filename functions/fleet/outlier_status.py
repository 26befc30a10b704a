"""Outlier status of replicas, from what happened to requests: kept for those in trouble only.

    out      ejected by evidence or as an outlier, or on probation with its probe under way
    probed   of those that are out: with a probe under way. Who finds nobody else goes there as well
    resting  it is full, and has said for how long it wants to be left alone: then nothing goes there, panic or not
    suspected   with their node or zone (`functions.decisions.health.failure_domains`), which the view knows
    panic    more than PANIC_RATIO of a pool's ready replicas are out: then nobody is, for evidence against most is
             more often about the network or the load; who would be out only counts as slower

Sending into a pool that looks dead costs one failed attempt; refusing to may keep it dead for ever.
Worked example (test_most_of_a_pool_is_never_out): with two of four out, two are out; with three, none is, and those
three are REFUSAL_MS slower than the fourth.

Neighbours: `view` owns one and says who is ready; `functions.decisions.health.ejection` and `outliers` decide.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from functions.api.ids import PoolName, ReplicaId
from functions.decisions.health.ejection import INTERVAL_S, REFUSAL_MS, Breaker, RequestCounts, outliers
from functions.decisions.routing.request import NO_PENALTIES

PANIC_RATIO = 0.5


@dataclass(frozen=True, slots=True)
class OutlierStatus:
    """Of a pool, at one moment."""

    out: frozenset[ReplicaId] = frozenset()
    penalties_ms: Mapping[ReplicaId, float] = field(default_factory=lambda: NO_PENALTIES)
    resting_s: Mapping[ReplicaId, float] = field(default_factory=lambda: NO_PENALTIES)  # for how much longer
    panic: bool = False
    probed: frozenset[ReplicaId] = frozenset()  # of those that are out: a probe is under way
    suspected: frozenset[ReplicaId] = frozenset()  # with their node or zone: avoided while others can take a request


@dataclass(slots=True)
class OutlierTracker:
    """Owned by one event loop. All times are monotonic seconds."""

    troubled: dict[PoolName, dict[ReplicaId, Breaker]] = field(default_factory=dict)  # empty while all is well
    _as_outliers: set[ReplicaId] = field(default_factory=set)
    _seen: dict[PoolName, dict[ReplicaId, RequestCounts]] = field(default_factory=dict)
    _judged_s: float = float("-inf")
    _all_well: OutlierStatus = field(default_factory=OutlierStatus)

    def breaker(self, pool: PoolName, replica_id: ReplicaId) -> Breaker:
        """To be told of a failure; made where there was none yet."""
        return self.troubled.setdefault(pool, {}).setdefault(replica_id, Breaker())

    def sent(self, pool: PoolName, replica_id: ReplicaId, now_s: float) -> None:
        if (breaker := self._known(pool, replica_id)) is not None:
            breaker.sent(now_s)

    def answered(self, pool: PoolName, replica_id: ReplicaId, sent_s: float, now_s: float) -> None:
        if (breaker := self._known(pool, replica_id)) is not None:
            breaker.answered(sent_s, now_s)

    def forget(self, pool: PoolName, replica_id: ReplicaId) -> None:
        """It is gone, or another has its name."""
        self._seen.get(pool, {}).pop(replica_id, None)
        self._as_outliers.discard(replica_id)
        troubled = self.troubled.get(pool)
        if troubled is not None and troubled.pop(replica_id, None) is not None and not troubled:
            del self.troubled[pool]

    def of(self, pool: PoolName, ready: Collection[ReplicaId], now_s: float) -> OutlierStatus:
        """Costs next to nothing while all is well."""
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

    # comparison

    def seen(self, pool: PoolName, replica_id: ReplicaId) -> RequestCounts:
        """Where this interval's requests are counted."""
        counts = self._seen.setdefault(pool, {})
        found = counts.get(replica_id)
        if found is None:
            found = counts[replica_id] = RequestCounts(replica_id)
        return found

    def judge(self, ready: Iterable[tuple[PoolName, int]], now_s: float) -> list[ReplicaId]:
        """Once an interval: eject the outliers of each pool, and forget who has been well for long."""
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
