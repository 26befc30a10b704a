"""Candidate replicas of a routing decision: all suitable replicas of a small pool, a sample of a large one.

Up to SCAN_MAX replicas, all are candidates. In larger pools, DRAWS of them are sampled at random (seeded by the
request's key), plus the first MAX_HITS replicas with the prompt in their cache, plus the session's replica. So a
decision costs the same at 33 replicas and at 2,000. Gateways, which do not coordinate, do not all choose the one
replica that looked idle a second ago, as they would with a true minimum.
The price: the best of 16 samples is among the best q of the pool with probability 1 - (1 - q)^16, so among the best
20 % in 97 of 100 decisions (test_sampled_choice_is_among_the_best_of_the_pool).

A pool that is dedicated to tenants has no candidates for other tenants (`PoolIndex.dedicated_to`, by the snapshot in
force). `placement` does not choose such a pool for them. This is the last check after an error or a change of snapshot
(test_no_path_leads_a_stranger_to_a_dedicated_replica).
"""

import hashlib
from collections.abc import Collection, Sequence
from itertools import islice

from xxhash import xxh3_64_intdigest

from functions.api.ids import Digest, ReplicaId
from functions.decisions.routing.replicas import PoolIndex, Row
from functions.decisions.routing.request import NoReplica, RouteRequest

SCAN_MAX = 32
DRAWS = 16
MAX_HITS = 16
_MASK = (1 << 64) - 1
_STEP, _OFFSET = 6364136223846793005, 1442695040888963407  # a 64-bit linear congruential generator


def candidates(request: RouteRequest, pool: PoolIndex, excluded: Collection[ReplicaId]) -> list[Row] | NoReplica:
    """Return the rows to be scored, at least one and without `excluded`, or the reason why there is none. Of a large
    pool it is a sample."""
    if pool.dedicated_to and request.tenant not in pool.dedicated_to:
        return NoReplica("dedicated")
    if not pool.ready:
        return NoReplica("no_replica_ready" if pool.known else "pool_empty")
    if request.weights is not None:
        return _with_weights(request, request.weights, pool, excluded)
    if request.is_adapter:
        return _holders(request, pool, excluded)
    if len(pool.ready) > SCAN_MAX:
        return _drawn(request, pool, pool.rows, excluded) or _untried(pool.rows, excluded)
    return _untried(pool.rows, excluded) if excluded else pool.rows


def _with_weights(
    request: RouteRequest, weights: Digest, pool: PoolIndex, excluded: Collection[ReplicaId]
) -> list[Row] | NoReplica:
    """Return the rows that have loaded one version of the base, and the adapter if the request is for one; a sample if
    they are many, or the reason why there is none."""
    those = pool.rows_with(weights, request.engine_name if request.is_adapter else None)
    if not those:
        return NoReplica("adapter_not_loaded" if pool.rows_with(weights) else "weights_not_loaded")
    able = [row for row in those if row[0] not in excluded] if excluded else those
    if len(able) > SCAN_MAX:
        return _drawn(request, pool, able, excluded)
    return able or NoReplica("all_tried")


def all_candidates(request: RouteRequest, pool: PoolIndex, excluded: Collection[ReplicaId]) -> list[Row] | NoReplica:
    """Return the rows of every replica that can answer, by id, for a pool of any size, or the reason why there is none.
    Base weights are not compared."""
    if pool.dedicated_to and request.tenant not in pool.dedicated_to:
        return NoReplica("dedicated")
    if not pool.known:
        return NoReplica("pool_empty")
    if not pool.ready:
        return NoReplica("no_replica_ready")
    untried = _untried(pool.rows, excluded)
    if isinstance(untried, NoReplica) or not request.is_adapter:
        return untried
    holders = pool.holders.get(request.engine_name, ())
    return [row for row in untried if row[0] in holders] or NoReplica("adapter_not_loaded")


def sample_rows(rows: list[Row], key: int, count: int = DRAWS) -> list[Row]:
    """Return `count` pseudo-random rows, with repetition. Equal keys give equal rows."""
    drawn, size = [], len(rows)
    for _ in range(count):
        key = (key * _STEP + _OFFSET) & _MASK
        drawn.append(rows[(key >> 33) % size])
    return drawn


def heaviest(rows: Sequence[Row], tie_key: str) -> Row:
    """Return the row with the highest hash weight for the key (rendezvous hashing), stable as others join or leave."""
    if len(rows) == 1:
        return rows[0]
    key = xxh3_64_intdigest(tie_key.encode())
    weights = [((key ^ row[5]) * _STEP) & _MASK for row in rows]
    return rows[weights.index(max(weights))]


def rendezvous(key: str, replica: ReplicaId) -> bytes:
    """Return a replica's rendezvous weight for the key, which stays the same in all releases; compare the bytes."""
    return hashlib.blake2b(f"{key}\0{replica}".encode(), digest_size=8).digest()


def _holders(request: RouteRequest, pool: PoolIndex, excluded: Collection[ReplicaId]) -> list[Row] | NoReplica:
    held = pool.rows_of(request.engine_name)
    able = [row for row in held if row[0] not in excluded] if excluded else held
    if not able:
        untried = excluded and all(name in excluded for name in pool.ready)
        return NoReplica("all_tried" if untried else "adapter_not_loaded")
    if len(able) > SCAN_MAX:
        by_id = sorted(able)  # sort by id: the order of a set must not decide
        return _drawn(request, pool, by_id, excluded)
    return able


def _drawn(request: RouteRequest, pool: PoolIndex, rows: list[Row], excluded: Collection[ReplicaId]) -> list[Row]:
    found = {row[0]: row for row in sample_rows(rows, xxh3_64_intdigest(request.tie_key.encode()))}
    for replica_id in islice(request.cached_tokens, MAX_HITS):
        _also(request, pool, replica_id, found)
    if request.session_replica is not None:
        _also(request, pool, request.session_replica, found)
    return [row for row in found.values() if row[0] not in excluded] if excluded else list(found.values())


def _also(request: RouteRequest, pool: PoolIndex, replica_id: ReplicaId, found: dict[ReplicaId, Row]) -> None:
    row = pool.ready.get(replica_id)
    if row is None or (request.is_adapter and replica_id not in pool.holders[request.engine_name]):
        return
    if request.weights is None or not pool.weights or row[6].weights == request.weights:
        found[replica_id] = row


def _untried(rows: list[Row], excluded: Collection[ReplicaId]) -> list[Row] | NoReplica:
    return [row for row in rows if row[0] not in excluded] or NoReplica("all_tried")
