"""Placement of a cold adapter: which replica loads an adapter that no replica of the pool has loaded.

A gateway decides this on the first request for the adapter. The preferences, in order:

    1 withdrawn  a replica that withdrew the adapter a moment ago: its engine still has it, so nothing is loaded
    2 room       a replica that can load now, over one that must drain an adapter first (`withdraw_s`, seconds)
    3 share      a replica below its share of the pool's load, as for every request (`choice`)
    4 on disk    a node that has the files, over a node that must fetch them
    5 soon       replicas whose predicted time to first token is at most NEAR_MS above the lowest
    6 hash       the replica with the highest rendezvous hash of the adapter's name

The hash concentrates an adapter on few replicas: gateways agree without messages, and an unloaded adapter returns to
its files. Step 5 is a band and not a minimum: two predictions are never equal, so the hash would never decide.

Worked example (test_worked_example_from_the_prologue): A and B have room, C has none. The prediction is 42 ms for A
and 126 ms for B. Both are within 250 ms of the lowest, so the hash decides, with the same result in every gateway. If
B is at 420 ms, A is chosen. If only B's node has the files and B is at 126 ms, B is chosen. If C withdrew the adapter
a second ago, C is chosen.

The reason for step 1: with more adapters in use than fit, a fifth of the withdrawn ones are requested again before
they are unloaded. Loading them elsewhere would evict others, which are then requested in turn
(docs/explanation/routing.md).
"""

from collections.abc import Callable, Collection

from functions.api.ids import ReplicaId
from functions.api.snapshot import RoutingEntry
from functions.decisions.routing.choice import (
    NEAR_MS,
    NoReplica,
    PoolView,
    Prediction,
    ReplicaView,
    RouteRequest,
    fair_share,
    predict,
    rendezvous,
)
from functions.decisions.routing.own_load import OwnLoad

ColdChoice = Callable[[RouteRequest, PoolView, RoutingEntry, OwnLoad, Collection[ReplicaId]], ReplicaView | NoReplica]


def choose_cold(
    request: RouteRequest,
    pool: PoolView,
    policy: RoutingEntry,
    load: OwnLoad,
    excluded: Collection[ReplicaId] = (),
) -> ReplicaView | NoReplica:
    """Return the replica that should load the adapter, or NoReplica with the reason. `excluded` lists replicas already
    asked, tried or ejected.

    A replica without room is chosen only if no other has room; its agent answers 409 if it is still full.
    """
    if pool.dedicated_to and request.tenant not in pool.dedicated_to:
        return NoReplica("dedicated")
    ready = [replica for replica in pool.replicas if replica.phase == "ready"]
    if not ready:
        return NoReplica("no_replica_ready" if pool.replicas else "pool_empty")
    untried = [replica for replica in _with_weights(request, ready) if replica.id not in excluded]
    if not untried:
        return NoReplica("all_tried")
    loaders = [replica for replica in untried if replica.peer_port]
    if not loaders:
        return NoReplica("adapter_not_loaded")
    predictions = [predict(request, replica, load) for replica in loaders]
    share = fair_share(predictions, policy)
    there = [each for each in predictions if request.engine_name in each.replica.withdrawn and each.outstanding < share]
    if there:
        return _heaviest(there, request).replica
    able = [prediction for prediction in predictions if prediction.replica.adapter_room > 0] or predictions
    share = fair_share(able, policy)
    left = [prediction for prediction in able if prediction.outstanding < share]
    left = [prediction for prediction in left if prediction.replica.has_on_disk(request.engine_name)] or left
    return _heaviest(_near(left), request).replica


def _with_weights(request: RouteRequest, ready: list[ReplicaView]) -> list[ReplicaView]:
    """Return the replicas that run the requested version of the base model; all, if no replica reports its version."""
    if request.weights is None or all(replica.weights is None for replica in ready):
        return ready
    return [replica for replica in ready if replica.weights == request.weights]


def _heaviest(predictions: list[Prediction], request: RouteRequest) -> Prediction:
    return max(predictions, key=lambda each: rendezvous(request.engine_name, each.replica.id))


def _near(predictions: list[Prediction]) -> list[Prediction]:
    least_ms = min(prediction.total_ms for prediction in predictions)
    return [prediction for prediction in predictions if prediction.total_ms <= least_ms + NEAR_MS]


# Turns of an overloaded pool's adapter loads, over all gateways.
#
# A load slows down the requests that an engine is serving. Each gateway loads one adapter at a time and then pauses
# for the other gateways' loads, so that on average one of the pool's engines is loading:
#
#     next turn = end of a load + its seconds x (gateways - 1)
#
# The pause has an upper limit: a waiting request must get its turn before its timeout. The number of gateways comes
# from the bus; a wrong count costs one load too many or a pause that is too long.
#
# Worked example (test_worked_example_of_four_gateways): with four gateways and loads of 0.2 s, each gateway starts a
# load every 0.8 s, and one of the pool's engines is loading at a time. Without the pause, up to four would be.


PAUSE_MOST_S = 4.0  # a request waits at most 15 s for an adapter


def next_turn_s(ended_s: float, took_s: float, gateways: int) -> float:
    """Return the time at which this gateway may start its next load: after the last one's end, a pause of its duration
    for each other gateway, at most PAUSE_MOST_S."""
    return ended_s + min(PAUSE_MOST_S, max(0.0, took_s) * max(0, gateways - 1))
