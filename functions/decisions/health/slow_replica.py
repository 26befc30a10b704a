"""Slow replicas: which replica of a pool to drain and restart because it alone is slow.

A sample of a replica is slow if one of its measures (`pace`: queue, prefill, gap between tokens) is over FACTOR times
the value that the other replicas explain:

    explained = median over the others of: their measure x max(1, its load / their load)      + the measure's floor

An engine with more requests makes at least as many tokens a second as one with fewer. So a pace in proportion to the
load is due to the load, and only the excess is due to the replica. The load is the number running (for the queue:
waiting) plus one. The floor avoids comparing microseconds. The median is the lower one: with two other replicas it is
the faster one's, so that a slow one of two to four replicas is found too.

    suspect      from the first slow sample until two good samples in a row. Samples without enough work
                 (REQUESTS_MIN, TOKENS_MIN) do not count: a slow replica also receives fewer requests
    condemned    suspect for `after_s`, with LOOKS_MIN slow samples, the last of them not older than `after_s`
    restarted    the slowest condemned replica, one at a time; only if the pool can spare it (`may_spare`), not within
                 `backoff_s` of any start in its pool, and twice as long after each restart of the last FORGET_S: a
                 restart does not fix a replica that is slow again

Worked example (test_worked_example_of_a_pool_of_two): a makes a token each 20 ms with 3 running, b one each 130 ms
with 4: explained are 20 x 5 / 4 + 5 = 30 ms, and 130 is over three times that. After a minute b is restarted. With 30
running, b's 130 ms would be explained: 20 x 31 / 4 = 155.

Neighbours: `functions.controller.health` supplies the samples and restarts replicas; so does the simulator.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_low

from functions.api.ids import PoolName, ReplicaId
from functions.decisions.health.pace import Pace

FACTOR = 3.0
REQUESTS_MIN = 5
TOKENS_MIN = 50
LOOKS_MIN = 3
WELL_LOOKS = 2
QUEUE_FLOOR_MS, PREFILL_FLOOR_MS, GAP_FLOOR_MS = 200.0, 0.05, 5.0
FORGET_S = 6 * 3600.0
BACKOFF_CAP_S = 4 * 3600.0
KV_MAX_RATIO = 0.85  # KV usage of the remaining replicas
QUEUE_MAX_S = 1.0  # expected queue time at the gateways
UNDER_WAY_MAX_S = 1800.0
_MAX_DOUBLINGS = 16


@dataclass(frozen=True, slots=True)
class SlowPolicy:
    after_s: float = 60.0
    backoff_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One ready replica."""

    replica_id: ReplicaId
    pace: Pace | None
    kv_usage_ratio: float
    began_unix_s: float  # start of its agent


@dataclass(frozen=True, slots=True)
class PoolState:
    """Current state of a pool."""

    pool: PoolName
    ready: Sequence[Seen]
    unsettled: int = 0  # replicas that are starting, draining, hung or dead
    suspected: int = 0  # ready replicas suspected with their node or zone
    queue_s: float = 0.0  # the longest queue time that a gateway expects
    overloaded: bool = False  # a step of the overload ladder is active


@dataclass(frozen=True, slots=True)
class Suspect:
    """Suspicion against one replica."""

    since_s: float
    slow_s: float  # time of the last slow sample
    slow_looks: int = 1
    well_looks: int = 0  # since the last slow one
    excess: float = 1.0  # measure / explained value, at the last slow sample
    why: str = ""


@dataclass(frozen=True, slots=True)
class PoolWatch:
    """Memory of one pool. Updated by `update_watch` and `record_restart`."""

    numbers: Mapping[ReplicaId, int] = field(default_factory=dict)  # number of the last pace, by replica
    suspects: Mapping[ReplicaId, Suspect] = field(default_factory=dict)
    restarts_s: tuple[float, ...] = ()
    under_way: Seen | None = None  # the replica being restarted, as it was before


@dataclass(frozen=True, slots=True)
class Verdict:
    """The slowest condemned replica. `held`: why it is not restarted yet; "" to restart it now."""

    replica_id: ReplicaId
    why: str
    held: str = ""


def update_watch(watch: PoolWatch, state: PoolState, now_s: float) -> PoolWatch:
    """Return the watch after another report: a replica whose new pace is slow compared with the others' becomes a
    suspect. A pace that was seen before does not count again."""
    numbers = {each.replica_id: each.pace.number for each in state.ready if each.pace is not None}
    suspects = {
        id_: suspect for id_, suspect in watch.suspects.items() if id_ in {each.replica_id for each in state.ready}
    }
    for each in state.ready:
        if each.pace is None or watch.numbers.get(each.replica_id) == each.pace.number:
            continue
        fellows = [other.pace for other in state.ready if other is not each and other.pace is not None]
        suspect = _judged(suspects.get(each.replica_id), each.pace, fellows, now_s)
        suspects.pop(each.replica_id, None)
        if suspect is not None:
            suspects[each.replica_id] = suspect
    restarts_s = tuple(each for each in watch.restarts_s if now_s - each < FORGET_S)
    under_way = watch.under_way if watch.under_way is not None and not _is_back(watch, state, now_s) else None
    return PoolWatch(numbers, suspects, restarts_s, under_way)


def verdict(watch: PoolWatch, state: PoolState, policy: SlowPolicy, now_s: float, now_unix_s: float) -> Verdict | None:
    """Return the verdict on the slowest condemned replica, with the reason why its restart must wait, if any; None if
    none is condemned."""
    condemned = {id_: suspect for id_, suspect in watch.suspects.items() if _is_condemned(suspect, policy, now_s)}
    if not condemned:
        return None
    worst = max(sorted(condemned), key=lambda id_: condemned[id_].excess)
    held = _too_soon(watch, state, policy, now_s, now_unix_s) or may_spare(state, worst)
    return Verdict(worst, condemned[worst].why, held)


def record_restart(watch: PoolWatch, replica: Seen, now_s: float) -> PoolWatch:
    """Record that a replica is being drained for its restart; it is no suspect any more. No other replica of the pool
    is restarted meanwhile."""
    suspects = {id_: suspect for id_, suspect in watch.suspects.items() if id_ != replica.replica_id}
    return replace(watch, suspects=suspects, restarts_s=(*watch.restarts_s, now_s), under_way=replica)


def may_spare(state: PoolState, replica_id: ReplicaId) -> str:
    """Return the reason why the pool's other replicas cannot take over this one's work; "" if they can."""
    others = [each for each in state.ready if each.replica_id != replica_id]
    kv_usage = sum(each.kv_usage_ratio for each in state.ready)
    reasons = {
        "no other replica is ready": not others,
        f"{state.unsettled} other replicas of the pool are not ready": state.unsettled > 0,
        "a node or zone of the pool sends no heartbeats": state.suspected > 0,
        "the pool's overload ladder is active": state.overloaded,
        f"requests wait {state.queue_s:.1f} s for the pool already": state.queue_s > QUEUE_MAX_S,
        "the others' KV caches have no room for its requests": kv_usage > KV_MAX_RATIO * len(others),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _judged(suspect: Suspect | None, pace: Pace, fellows: Sequence[Pace], now_s: float) -> Suspect | None:
    found = [each for each in (_excess(measure, pace, fellows) for measure in _MEASURES) if each is not None]
    if not found:
        return suspect
    excess, why = max(found)
    if excess > FACTOR:
        if suspect is None:
            return Suspect(now_s, now_s, excess=excess, why=why)
        return Suspect(suspect.since_s, now_s, suspect.slow_looks + 1, 0, excess, why)
    if suspect is None or suspect.well_looks + 1 >= WELL_LOOKS:
        return None
    return replace(suspect, well_looks=suspect.well_looks + 1)


@dataclass(frozen=True, slots=True)
class _Measure:
    name: str
    value_ms: Callable[[Pace], float | None]
    load: Callable[[Pace], float]
    floor_ms: float


_MEASURES = (
    _Measure(
        "in its queue",
        lambda pace: pace.queue_ms if pace.requests >= REQUESTS_MIN else None,
        lambda pace: pace.waiting + 1.0,
        QUEUE_FLOOR_MS,
    ),
    _Measure(
        "per prompt token",
        lambda pace: pace.prefill_ms if pace.requests >= REQUESTS_MIN else None,
        lambda pace: pace.running + 1.0,
        PREFILL_FLOOR_MS,
    ),
    _Measure(
        "between two tokens",
        lambda pace: pace.gap_ms if pace.tokens >= TOKENS_MIN else None,
        lambda pace: pace.running + 1.0,
        GAP_FLOOR_MS,
    ),
)


def _excess(measure: _Measure, pace: Pace, fellows: Sequence[Pace]) -> tuple[float, str] | None:
    """Return the measured value divided by the one that the load explains (from the other replicas' paces), with a
    sentence; None if there is nothing to compare."""
    value_ms = measure.value_ms(pace)
    if value_ms is None:
        return None
    load = measure.load(pace)
    explained = [
        other_ms * max(1.0, load / measure.load(other))
        for other in fellows
        if (other_ms := measure.value_ms(other)) is not None
    ]
    if not explained:
        return None
    explained_ms = median_low(explained) + measure.floor_ms
    return value_ms / explained_ms, f"{value_ms:.3g} ms {measure.name}; its load explains {explained_ms:.3g} ms"


def _is_condemned(suspect: Suspect, policy: SlowPolicy, now_s: float) -> bool:
    is_fresh = now_s - suspect.slow_s <= policy.after_s
    return is_fresh and suspect.slow_looks >= LOOKS_MIN and now_s - suspect.since_s >= policy.after_s


def _too_soon(watch: PoolWatch, state: PoolState, policy: SlowPolicy, now_s: float, now_unix_s: float) -> str:
    if watch.under_way is not None:
        return f"{watch.under_way.replica_id} of the same pool is being restarted"
    doublings = min(_MAX_DOUBLINGS, max(0, len(watch.restarts_s) - 1))
    backoff_s = min(BACKOFF_CAP_S, policy.backoff_s * 2.0**doublings)
    last_s = watch.restarts_s[-1] if watch.restarts_s else float("-inf")
    if (left_s := last_s + backoff_s - now_s) > 0:
        return f"{len(watch.restarts_s)} recent restarts: the next may follow in {left_s:.0f} s"
    youngest_s = min(now_unix_s - each.began_unix_s for each in state.ready)
    if youngest_s < policy.backoff_s:
        return f"a replica of the pool started {youngest_s:.0f} s ago: no restart before {policy.backoff_s:.0f} s"
    return ""


def _is_back(watch: PoolWatch, state: PoolState, now_s: float) -> bool:
    """Return True if the restart is over: all replicas are ready again and the restarted one's old process is gone, or
    UNDER_WAY_MAX_S has passed."""
    gone = watch.under_way
    since_s = now_s - watch.restarts_s[-1] if watch.restarts_s else float("inf")
    is_there = any(gone is not None and _is_same(gone, each) for each in state.ready)
    return since_s > UNDER_WAY_MAX_S or (since_s > _NOTICED_S and not is_there and not state.unsettled)


def _is_same(former: Seen, now: Seen) -> bool:
    return (former.replica_id, former.began_unix_s) == (now.replica_id, now.began_unix_s)


_NOTICED_S = 10.0  # time until a restart shows in heartbeats
