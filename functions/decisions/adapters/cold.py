"""Placement of an adapter that no replica of the pool has loaded: asked by a gateway on its first request.

In order, each a reason to prefer some over others:

    1 there      a replica that withdrew it a moment ago: its engine has it still, and nothing need be loaded
    2 room       one that can load at once, over one that must first drain an adapter (`withdraw_s`, seconds)
    3 share      a replica below its share of the pool's load, as for every request (`choice`)
    4 on disk    a node that has the files, over one that must fetch them
    5 soon       those whose predicted time to first token is at most NEAR_MS behind the least
    6 gather     the heaviest by rendezvous hash of the adapter's name

The last makes one adapter gather on few replicas: gateways that know nothing of each other choose the same one, and
an adapter that was unloaded comes back to where its files lie. Step 5 is a band and not a minimum, since two
predictions are never equal and the hash would never speak.
Worked example (test_worked_example_from_the_prologue): A and B have room, C has none. A is predicted at 42 ms and B at
126; both are within 250 ms of the least, so the hash of the name says which, and says the same in every gateway. With
B at 420 ms it is A. With the files on B's node only, and B at 126 ms, it is B. And had C withdrawn it a second ago, C.

Why 1: with more adapters in use than there is room for, a fifth of what is withdrawn is asked for again before it is
unloaded; loaded elsewhere it would push out another, asked for again in its turn (docs/explanation/routing.md).
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
    """The replica to ask; `excluded` are those already asked, tried or ejected.

    One without room is chosen only where no other is: its agent knows better, and says 409 if that is still so.
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
    """Those of the base's version that is meant, where anybody tells what it has loaded."""
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
# A load takes steps from those who are being answered. Each agent puts one adapter at a time into its engine; so what
# the number of gateways decides is how many of a pool's engines load at once. Each gateway loads one at a time, and
# leaves the others their part of the time after it, so that on average one load is under way in the pool, whoever asks:
#
#     next turn = end of a load + its seconds x (gateways - 1)
#
# The pause is bounded, as a load may have come from far away: who waits is to have his turn before his time is over.
# Nothing is asked of the bus for it but what it tells already, how many gateways there are; a count that is wrong for a
# moment costs a load too many or a pause too long.
#
# Worked example (test_worked_example_of_four_gateways): four gateways, loads of 0.2 s: each begins one every 0.8 s, and
# of the pool's engines one is loading at a time. Without the pause it would be up to four.


PAUSE_MOST_S = 4.0  # of the 15 s that a request waits for an adapter


def next_turn_s(ended_s: float, took_s: float, gateways: int) -> float:
    """When this gateway may begin to load another one."""
    return ended_s + min(PAUSE_MOST_S, max(0.0, took_s) * max(0, gateways - 1))
