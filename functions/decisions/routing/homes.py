"""Home of a conversation that nobody here has seen: the replica that every gateway would name, without a word.

Forty gateways behind one front see the turns of a conversation by turns. Each takes the same replica for its home, by
a hash of the conversation and of the replicas that are ready (an adapter's: that hold it), so only exceptions need
telling (`functions.gateway.routing.homes`).

    up to SCAN_MAX replicas:  rendezvous hashing, the heaviest of all
    beyond:                   one ring of the replicas' lots, PROBES places on it by the conversation; whoever follows
                              one of them most closely (multi-probe consistent hashing, Appleton and O'Reilly 2015)

A replica that comes takes its share of the conversations, one that goes leaves them to the others, and nobody else's
move (test_a_replica_that_comes_takes_only_its_share). It takes them SETTLES_S after it was seen to become ready: those
who know where a conversation of its share is have told the others by then, which would look for it at the newcomer
(`functions.gateway.routing.homes`). At the border between the two ways they all move, once.
Measured beside other work: 8 us for 32 replicas, 10 to 24 us up to 2,000 (rendezvous hashing: 570 us). With 21 places
on the ring the busiest of 200 replicas has less than twice the mean (test_conversations_spread).

Neighbours: `candidates` has rendezvous hashing; `replicas` keeps the ring.
"""

from bisect import bisect_left
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from functions.api.ids import EngineName, ReplicaId
from functions.decisions.routing.candidates import SCAN_MAX, heaviest
from functions.decisions.routing.replicas import PoolIndex

PROBES = 21
SETTLES_S = 2.0  # from a sweep to the next, and to the next batch on the bus, several times over
_MASK = (1 << 64) - 1
_STEP, _OFFSET = 6364136223846793005, 1442695040888963407  # a 64-bit linear congruential generator


def assumed_home(
    key: str, pool: PoolIndex, engine_name: EngineName, *, is_adapter: bool, settled: bool = True
) -> ReplicaId | None:
    """Where a conversation with this key belongs, as far as hashes say; None where nobody could answer it.

    `settled`: not with one that has just become ready, while there are others.
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
