"""Assumed home of a conversation that no gateway has reported: a replica that every gateway computes without messages.

Many gateways behind one load balancer see the turns of a conversation in alternation. Each assumes the same home
replica, by a hash of the conversation and of the ready replicas (for an adapter: those that hold it). So gateways only
tell each other the exceptions (`functions.gateway.routing.homes`).

    up to SCAN_MAX replicas:  rendezvous hashing, the heaviest of all
    beyond:                   one ring of the replicas' hashes, PROBES points on it per conversation; the hash that
                              follows one most closely wins (multi-probe consistent hashing, Appleton and O'Reilly 2015)

A replica that joins receives its share of the conversations, and one that leaves passes its share on to the others. No
other conversation moves (test_added_replica_takes_only_its_share). A new replica receives its share only some
seconds after it became ready (SETTLES_S). By then, gateways that know the real home of one of these conversations have
reported it to the others, which would otherwise look for it at the new replica (`functions.gateway.routing.homes`).
When a pool grows or shrinks past SCAN_MAX, all conversations move, once.
Measured under other load: 8 us for 32 replicas, 10 to 24 us up to 2,000 (rendezvous hashing: 570 us). With 21 points
on the ring the busiest of 200 replicas has less than twice the mean (test_conversations_spread).

Neighbours: `candidates` has rendezvous hashing; `replicas` holds the ring.
"""

from bisect import bisect_left
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from functions.api.ids import EngineName, ReplicaId
from functions.decisions.routing.candidates import SCAN_MAX, heaviest
from functions.decisions.routing.replicas import PoolIndex

PROBES = 21
SETTLES_S = 2.0  # several times the interval between sweeps and between batches on the bus
_MASK = (1 << 64) - 1
_STEP, _OFFSET = 6364136223846793005, 1442695040888963407  # a 64-bit linear congruential generator


def assumed_home(
    key: str, pool: PoolIndex, engine_name: EngineName, *, is_adapter: bool, settled: bool = True
) -> ReplicaId | None:
    """Return the replica that is assumed to be the home of a conversation with this key, or None if no replica can
    answer it.

    `settled`: avoid replicas that have just become ready, if there are others.
    """
    rows = pool.rows_of(engine_name) if is_adapter else pool.rows
    if not rows:
        return None
    is_whole = True
    if pool.fresh and settled:
        old = [row for row in rows if row[0] not in pool.fresh]
        rows, is_whole = old or rows, not old
    if len(rows) <= SCAN_MAX:
        return heaviest(rows, key)[0]
    ring = pool.ring() if is_whole and not is_adapter else sorted((row[5], row[0]) for row in rows)
    return _nearest(xxh3_64_intdigest(key.encode()), ring)


def _nearest(key: int, ring: Sequence[tuple[int, ReplicaId]]) -> ReplicaId:
    least, home = _MASK, ring[0][1]
    for _ in range(PROBES):
        key = (key * _STEP + _OFFSET) & _MASK
        at = bisect_left(ring, (key,))
        lot, replica_id = ring[at if at < len(ring) else 0]
        distance = (lot - key) & _MASK
        if distance < least:
            least, home = distance, replica_id
    return home
