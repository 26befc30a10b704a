"""Choice of a replica: the least score (`prediction`) among the candidates with a fair load.

Load is bounded (consistent hashing with bounded loads; c is the RoutingPolicy's `boundedLoad`). A replica that already
has its share, ceil(c x (all outstanding + 1) / replicas) + SLACK, is no candidate, however fast it looks. Measured
rates lag: otherwise one slow minute would send nearly all requests elsewhere until the rates are corrected.
Worked example (test_no_replica_gets_more_than_its_share): with c = 1.25, 16 and 2 outstanding make a share of
ceil(1.25 x 19 / 2) + 4 = 16, so the first gets no more, though it seems ten times as fast.
A full replica's requests are not shifted to a replica that has more tokens ahead than the request itself, however few
requests those are: our own count of tokens does not lag. (A 30,000-token prompt is one request, and a request behind it
waits for two seconds.)

A conversation leaves its home only if that is worth computing its prompt again (`moves`), or if the home has its share.

Only replicas that hold the model's adapter are candidates: an engine answers 404 for an adapter that it has not loaded.
If the holders are so busy that loading it elsewhere would be faster, the decision names the replica (`load_elsewhere`).
Ties are broken by a hash of the request's key and the replica's id, never by the order in which replicas joined.

Neighbours: `prediction` has the formula, `replicas` the rows, `candidates` selects them, `request` has the types.
"""

from collections.abc import Collection, Mapping, Sequence
from math import ceil

import msgspec
from xxhash import xxh3_64_intdigest

from functions.api.ids import EngineName, ReplicaId
from functions.api.snapshot import RoutingEntry
from functions.decisions.routing.candidates import SCAN_MAX, candidates, heaviest, rendezvous, sample_rows
from functions.decisions.routing.moves import Move, compared, pays
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.prediction import kept_ratio, least, predict
from functions.decisions.routing.replicas import PoolIndex, PoolView, ReplicaPhase, ReplicaView, Row
from functions.decisions.routing.request import (
    NO_PENALTIES,
    NOTHING_CACHED,
    HomeState,
    NoReplica,
    Prediction,
    RouteReason,
    RouteRequest,
)

# Second copy of a hot adapter: wanted if it would answer sooner elsewhere, including the time to load it.
#
#     elsewhere = predicted there (nothing cached) + load,   load = DISK_MS with the files on its node, else STORE_MS
#                                                                 + EVICTION_MS if only its headroom is left
#     a copy is wanted if the least elsewhere < predicted at the best holder
#
# The request at hand still goes to the holder; the copy serves later requests. The check runs only if the best holder
# is predicted above DISK_MS, since no load is faster. Replicas without a free adapter slot are skipped.
# Worked example (test_worked_example_from_the_prologue): the only holder is predicted at 900 ms. A has the files on its
# disk and is predicted at 100: 100 + 300 = 400, less than 900: a copy on A. B, idle, would have to fetch them: 1,500.
#
# An agent keeps an eighth of its slots free, so that a cold load need not wait until another adapter is withdrawn
# (`adapter_state.AdapterPolicy.headroom`). If a copy uses one of those, the next cold load waits for a withdrawal, and
# the evicted adapter must be loaded again later.
# Worked example (test_second_copy_without_free_slot_costs_an_eviction): with 14 of 16 slots used, A counts
# 100 + 300 + 3,000 = 3,400: no copy for a holder predicted at 900, and one for a holder predicted at 4,000.
# In a replay of 200 adapters and 128 slots (docs/explanation/routing.md) without EVICTION_MS, 168 copies were made in
# four minutes. Each evicted another adapter, cold starts went from 6 to 9 % of all requests, and p99 from 2.0 to 5.1 s.


# Among replicas within NEAR_MS of the least, the adapter's hash decides; in a large pool it also selects the sample.
# So forty gateways that see the same holder busy, each with a different load, want the same copy and not forty
# (test_gateways_with_different_loads_choose_the_same_replica).


DISK_MS = 300.0  # measured: 0.1 to 0.3 s with the agent's round trip
HEADROOM_PART = 8  # an agent keeps one slot in so many free
STORE_MS = 1_500.0  # a fetch of some ten megabytes from S3 on top
NEAR_MS = 250.0  # least cost of a load: a queue that is shorter by less is not worth another copy
EVICTION_MS = 3_000.0  # duration of a withdrawal (`AdapterPolicy.withdraw_s`)


def copy_elsewhere(
    request: RouteRequest, pool: PoolIndex, best: Prediction, load: OwnLoad, excluded: Collection[ReplicaId]
) -> ReplicaId | None:
    """Return the replica where loading a second copy of the adapter and answering would take less time than at the best
    holder, or None."""
    if best.total_ms <= DISK_MS:
        return None
    holders = pool.holders.get(request.engine_name, ())
    if len(holders) == len(pool.ready):
        return None  # all ready replicas hold it
    rows = [row for row in _looked_at(request, pool) if _may_load(row[6]) and row[0] not in holders]
    rows = [row for row in rows if row[0] not in excluded]
    if request.weights is not None and pool.weights:
        rows = [row for row in rows if row[6].weights == request.weights]
    if not rows:
        return None
    times = {row[0]: predict(request, row[6], load).total_ms + load_ms(row[6], request.engine_name) for row in rows}
    least_ms = min(times.values())
    if least_ms >= best.total_ms:
        return None
    near_ms = min(least_ms + NEAR_MS, best.total_ms)
    return heaviest([row for row in rows if times[row[0]] <= near_ms], request.engine_name)[0]


def load_ms(replica: ReplicaView, name: EngineName) -> float:
    """Return the estimated milliseconds to load the adapter there, plus the cost of an eviction if only headroom is
    left."""
    eviction_ms = EVICTION_MS if _only_headroom(replica) else 0.0
    return (DISK_MS if replica.has_on_disk(name) else STORE_MS) + eviction_ms


def _only_headroom(replica: ReplicaView) -> bool:
    places = len(replica.adapters) + replica.adapter_room
    return replica.adapter_room <= max(1, places // HEADROOM_PART)


def _looked_at(request: RouteRequest, pool: PoolIndex) -> list[Row]:
    if len(pool.rows) <= SCAN_MAX:
        return pool.rows
    return sample_rows(pool.rows, xxh3_64_intdigest(request.engine_name.encode()))


def _may_load(replica: ReplicaView) -> bool:
    return replica.peer_port > 0 and replica.adapter_room > 0


__all__ = [
    "NOTHING_CACHED",
    "NoReplica",
    "PoolIndex",
    "PoolView",
    "Prediction",
    "ReplicaPhase",
    "ReplicaView",
    "RouteRequest",
    "decide",
    "fair_share",
    "predict",
    "rendezvous",
    "route",
]

SLACK = 4  # requests above the share that are tolerated (`prediction` has the measurement)


def decide(
    request: RouteRequest,
    pool: PoolView,
    policy: RoutingEntry,
    in_flight: Mapping[ReplicaId, int],
    excluded: Collection[ReplicaId] = (),
) -> Prediction | NoReplica:
    """Return what `route` decides for a pool view that is used once; `in_flight` is this gateway's own count of
    requests per replica."""
    return route(request, PoolIndex(pool.replicas, pool.dedicated_to), policy, OwnLoad(in_flight), excluded=excluded)


def route(
    request: RouteRequest,
    pool: PoolIndex,
    policy: RoutingEntry,
    load: OwnLoad,
    *,
    excluded: Collection[ReplicaId] = (),
    penalties_ms: Mapping[ReplicaId, float] = NO_PENALTIES,
) -> Prediction | NoReplica:
    """Return the replica with the least score among those that can answer and are below their fair share, or the reason
    why there is none; a conversation leaves its home only if that pays. `excluded` are those tried or ejected."""
    rows = candidates(request, pool, excluded)
    if isinstance(rows, NoReplica):
        return rows
    kept = 1.0
    if request.cached_tokens:
        kept = kept_ratio(pool.utilization_ratio, policy.spread_above_utilization_ratio)
    tied, outstanding_sum = least(request, rows, load, kept, penalties_ms)
    share = _share(outstanding_sum, len(rows), policy)
    fair = [row for row in tied if _outstanding(row, load) < share]
    is_first = bool(fair)
    if not is_first:
        fair = [row for row in rows if _outstanding(row, load) < share and not _reads_more(request, row, load)] or tied
        fair, _ = least(request, fair, load, kept, penalties_ms)
    chosen, moved = heaviest(fair, request.tie_key), None
    if request.session_replica is not None and chosen[0] != request.session_replica and not request.is_first_turn:
        home = pool.ready.get(request.session_replica)
        if home is not None:
            state, move = _home_state(home, rows, load, share), Move(request, home[6], chosen[6], load, kept)
            if state == "slower" and not pays(move, rows, penalties_ms):
                chosen, is_first = home, True
            else:
                moved = compared(move, state, penalties_ms)
    found = _explained(request, chosen, load, kept, is_first=is_first)
    if moved is not None:
        found = msgspec.structs.replace(found, moved=moved)
    elsewhere = copy_elsewhere(request, pool, found, load, excluded) if request.is_adapter else None
    return found if elsewhere is None else msgspec.structs.replace(found, load_elsewhere=elsewhere)


def fair_share(predictions: Sequence[Prediction], policy: RoutingEntry) -> int:
    """Return the number of outstanding requests from which on a replica receives no more, given the predictions of all
    candidates."""
    return _share(sum(prediction.outstanding for prediction in predictions), len(predictions), policy)


def _share(outstanding_sum: int, replicas: int, policy: RoutingEntry) -> int:
    return ceil(policy.bounded_load * (outstanding_sum + 1) / replicas) + SLACK


def _home_state(home: Row, rows: Sequence[Row], load: OwnLoad, share: int) -> HomeState:
    if home not in rows:
        return "out"
    return "slower" if _outstanding(home, load) < share else "full"


def _outstanding(row: Row, load: OwnLoad) -> int:
    return max(row[1], load.in_flight.get(row[0], 0))


def _reads_more(request: RouteRequest, row: Row, load: OwnLoad) -> bool:
    return load.ahead_tokens.get(row[0], 0) > request.prompt_tokens


def _explained(request: RouteRequest, row: Row, load: OwnLoad, kept: float, *, is_first: bool) -> Prediction:
    is_cached = request.cached_tokens.get(row[0], 0) > 0
    reason: RouteReason = "least_predicted_wait"
    if row[0] == request.session_replica and not request.is_first_turn:
        reason = "session"
    elif not is_first or (kept < 1.0 and not is_cached):
        reason = "spread"
    elif is_cached:
        reason = "prefix"
    return predict(request, row[6], load, reason)
