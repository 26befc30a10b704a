"""Which replica answers: the one with the least score (`prediction`), among those with a fair load.

Load is bounded (consistent hashing with bounded loads; c is the RoutingPolicy's `boundedLoad`): a replica that already
has more than its share, ceil(c x (all outstanding + 1) / replicas) + SLACK, is no candidate, however fast it looks.
Measured rates lag: one slow minute would otherwise send nearly everything elsewhere for as long as nobody corrects it.
Worked example (test_no_replica_gets_more_than_its_share): with c = 1.25, 16 and 2 outstanding make a share of
ceil(1.25 x 19 / 2) + 4 = 16, so the first takes no more, though it seems ten times as fast.
A replica that has more tokens ahead than the request itself is no refuge, however few requests those are: our own count
of tokens does not lag. (A 30,000-token prompt is one request, and whoever is sent behind it waits for two seconds.)

Only replicas that hold the model's adapter are candidates: an engine answers 404 for one that it has not loaded. Where
the holders are so busy that a load elsewhere would be faster, the decision says where (`adapter_copies`).
Ties break by a hash of the request's key and the replica's id, never by the order in which replicas were learnt.

Neighbours: `prediction` has the formula, `replicas` the rows, `routing_candidates` which of them are looked at,
`routing_request` what goes in and what comes out.
"""

from collections.abc import Collection, Mapping, Sequence
from math import ceil

import msgspec

from functions.api.ids import ReplicaId
from functions.api.snapshot import RoutingEntry
from functions.decisions.adapters.copies import copy_elsewhere
from functions.decisions.routing.candidates import candidates, heaviest, rendezvous
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.prediction import kept_ratio, least, predict
from functions.decisions.routing.replicas import PoolIndex, PoolView, ReplicaPhase, ReplicaView, Row
from functions.decisions.routing.request import (
    NO_PENALTIES,
    NOTHING_CACHED,
    NoReplica,
    Prediction,
    RouteReason,
    RouteRequest,
)

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

SLACK = 4  # requests above the share that are no imbalance yet (`prediction` says how it was found)


def decide(
    request: RouteRequest,
    pool: PoolView,
    policy: RoutingEntry,
    in_flight: Mapping[ReplicaId, int],
    excluded: Collection[ReplicaId] = (),
) -> Prediction | NoReplica:
    """`route` for a pool that is looked at once; `in_flight` is this gateway's own count per replica."""
    return route(request, PoolIndex(pool.replicas), policy, OwnLoad(in_flight), excluded=excluded)


def route(
    request: RouteRequest,
    pool: PoolIndex,
    policy: RoutingEntry,
    load: OwnLoad,
    *,
    excluded: Collection[ReplicaId] = (),
    penalties_ms: Mapping[ReplicaId, float] = NO_PENALTIES,
) -> Prediction | NoReplica:
    """The replica with the least score among those that can answer; `excluded` are those already tried or ejected."""
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
    found = _explained(request, heaviest(fair, request.tie_key), load, kept, is_first=is_first)
    return _with_copy(request, pool, found, load, excluded) if request.is_adapter else found


def fair_share(predictions: Sequence[Prediction], policy: RoutingEntry) -> int:
    """The number of outstanding requests from which a replica takes no more."""
    return _share(sum(prediction.outstanding for prediction in predictions), len(predictions), policy)


def _share(outstanding_sum: int, replicas: int, policy: RoutingEntry) -> int:
    return ceil(policy.bounded_load * (outstanding_sum + 1) / replicas) + SLACK


def _outstanding(row: Row, load: OwnLoad) -> int:
    return max(row[1], load.in_flight.get(row[0], 0))


def _reads_more(request: RouteRequest, row: Row, load: OwnLoad) -> bool:
    return load.ahead_tokens.get(row[0], 0) > request.prompt_tokens


def _explained(request: RouteRequest, row: Row, load: OwnLoad, kept: float, *, is_first: bool) -> Prediction:
    is_cached = request.cached_tokens.get(row[0], 0) > 0
    reason: RouteReason = "least_predicted_wait"
    if row[0] == request.session_replica:
        reason = "session"
    elif not is_first or (kept < 1.0 and not is_cached):
        reason = "spread"
    elif is_cached:
        reason = "prefix"
    return predict(request, row[6], load, reason)


def _with_copy(
    request: RouteRequest, pool: PoolIndex, found: Prediction, load: OwnLoad, excluded: Collection[ReplicaId]
) -> Prediction:
    elsewhere = copy_elsewhere(request, pool, found, load, excluded)
    return found if elsewhere is None else msgspec.structs.replace(found, load_elsewhere=elsewhere)
