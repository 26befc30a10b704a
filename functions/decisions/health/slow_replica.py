"""Slow replicas: which one of a pool is to be drained and restarted, because it is slow by itself.

A look at a replica is slow where one of its measures (`pace`: queue, prefill, gap between tokens) is over FACTOR times
what its fellows' work explains:

    explained = median over the fellows of: their measure x max(1, its load / their load)      + the measure's floor

An engine that has more requests makes at least as many tokens a second as one that has fewer, so a pace in proportion
to the load is the load's, and only what is beyond that is the replica's own. The load is what runs (for the queue: what
waits), each with one added. The floor keeps microseconds from being compared. The median is the lower one: with one
fellow its own, with two the quicker one's, so that one of two to four is found as one of many is.

    suspect      from the first slow look on; two looks in a row that are well end it. Looks without enough work
                 (REQUESTS_MIN, TOKENS_MIN) say nothing: one that is slow is also asked less
    condemned    suspect for `after_s`, with LOOKS_MIN slow looks, the last of them not older than `after_s`
    restarted    the slowest of those condemned, and one at a time; not where the pool cannot spare it (`may_spare`),
                 not within `backoff_s` of any start in its pool, and for twice as long after each restart of the last
                 FORGET_S, since what is slow again after one has a reason that a restart does not mend

Worked example (test_worked_example_of_a_pool_of_two): a makes a token each 20 ms with 3 running, b one each 130 ms with
4: explained are 20 x 5 / 4 + 5 = 30 ms, and 130 is over three times that. After a minute b is restarted. With 30
running b's 130 ms were explained: 20 x 31 / 4 = 155.

Neighbours: `functions.controller.health` looks, and does what is decided; the simulator the same.
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
KV_MAX_RATIO = 0.85  # of those who stay
QUEUE_MAX_S = 1.0  # of the pool's requests, at the gateways
UNDER_WAY_MAX_S = 1800.0
_MAX_DOUBLINGS = 16


@dataclass(frozen=True, slots=True)
class SlowPolicy:
    after_s: float = 60.0
    backoff_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One replica that is ready."""

    replica_id: ReplicaId
    pace: Pace | None
    kv_usage_ratio: float
    began_unix_s: float  # its agent


@dataclass(frozen=True, slots=True)
class PoolState:
    """What a pool is like now."""

    pool: PoolName
    ready: Sequence[Seen]
    unsettled: int = 0  # replicas that start, drain, hang or are dead
    suspected: int = 0  # of those ready, with their node or zone
    queue_s: float = 0.0  # the longest that a gateway expects
    overloaded: bool = False  # a rung of the ladder is in force


@dataclass(frozen=True, slots=True)
class Suspect:
    """About one replica."""

    since_s: float
    slow_s: float  # of the last slow look
    slow_looks: int = 1
    well_looks: int = 0  # since the last slow one
    excess: float = 1.0  # how many times what is explained, at the last slow look
    why: str = ""


@dataclass(frozen=True, slots=True)
class PoolWatch:
    """What is remembered of a pool. Evolve it with `look` and `restarting`."""

    numbers: Mapping[ReplicaId, int] = field(default_factory=dict)  # of the pace that was looked at last
    suspects: Mapping[ReplicaId, Suspect] = field(default_factory=dict)
    restarts_s: tuple[float, ...] = ()
    under_way: Seen | None = None  # as it was before


@dataclass(frozen=True, slots=True)
class Verdict:
    """`held`: why it is not restarted (yet); "" where it is to be restarted now."""

    replica_id: ReplicaId
    why: str
    held: str = ""


def look(watch: PoolWatch, state: PoolState, now_s: float) -> PoolWatch:
    """After another report; a pace that was seen before says nothing new."""
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
    """Of the slowest that is condemned; None where nobody is."""
    condemned = {id_: suspect for id_, suspect in watch.suspects.items() if _is_condemned(suspect, policy, now_s)}
    if not condemned:
        return None
    worst = max(sorted(condemned), key=lambda id_: condemned[id_].excess)
    held = _too_soon(watch, state, policy, now_s, now_unix_s) or may_spare(state, worst)
    return Verdict(worst, condemned[worst].why, held)


def restarting(watch: PoolWatch, replica: Seen, now_s: float) -> PoolWatch:
    """It is being drained: its suspects are over, and nobody else's turn comes meanwhile."""
    suspects = {id_: suspect for id_, suspect in watch.suspects.items() if id_ != replica.replica_id}
    return replace(watch, suspects=suspects, restarts_s=(*watch.restarts_s, now_s), under_way=replica)


def may_spare(state: PoolState, replica_id: ReplicaId) -> str:
    """Why the others cannot do its work for a while; "" where they can."""
    others = [each for each in state.ready if each.replica_id != replica_id]
    kv_usage = sum(each.kv_usage_ratio for each in state.ready)
    reasons = {
        "no other replica is ready": not others,
        f"{state.unsettled} other replicas of the pool are not ready": state.unsettled > 0,
        "a node or a zone of the pool has fallen silent": state.suspected > 0,
        "the pool is on its overload ladder": state.overloaded,
        f"requests wait {state.queue_s:.1f} s for the pool as it is": state.queue_s > QUEUE_MAX_S,
        "the others' KV caches have no room for its requests": kv_usage > KV_MAX_RATIO * len(others),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


# inside


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
        "waits in its queue",
        lambda pace: pace.queue_ms if pace.requests >= REQUESTS_MIN else None,
        lambda pace: pace.waiting + 1.0,
        QUEUE_FLOOR_MS,
    ),
    _Measure(
        "a prompt token",
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
    """How many times what is explained, and in words; None where there is nothing to compare."""
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
    return value_ms / explained_ms, f"{value_ms:.3g} ms {measure.name}, where its fellows explain {explained_ms:.3g} ms"


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
        return f"{len(watch.restarts_s)} restarts lately: not again for {left_s:.0f} s"
    youngest_s = min(now_unix_s - each.began_unix_s for each in state.ready)
    if youngest_s < policy.backoff_s:
        return f"a replica of the pool began {youngest_s:.0f} s ago: not before it is {policy.backoff_s:.0f} s old"
    return ""


def _is_back(watch: PoolWatch, state: PoolState, now_s: float) -> bool:
    """Everybody is ready again, it or whoever came in its place; or that takes too long to wait for."""
    gone = watch.under_way
    since_s = now_s - watch.restarts_s[-1] if watch.restarts_s else float("inf")
    is_there = any(gone is not None and _is_same(gone, each) for each in state.ready)
    return since_s > UNDER_WAY_MAX_S or (since_s > _NOTICED_S and not is_there and not state.unsettled)


def _is_same(former: Seen, now: Seen) -> bool:
    return (former.replica_id, former.began_unix_s) == (now.replica_id, now.began_unix_s)


_NOTICED_S = 10.0  # until what was ordered shows in heartbeats
