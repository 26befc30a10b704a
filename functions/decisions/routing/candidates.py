"""Candidate replicas of a decision: all that can answer in a small pool, those that may win in a large one.

Up to SCAN_MAX, all. Beyond, DRAWS of them by lot (the request's key is the lot), and whoever speaks for himself: the
first MAX_HITS of those with the prompt in their cache, and the session's replica. So a decision costs the same at 33
replicas and at 2,000, and gateways that know nothing of each other do not all run to the one that looked idle a second
ago, as they would to a true minimum.
What is lost: the best of 16 drawn at random is among the best q of the pool with probability 1 - (1 - q)^16, so among
the best 20 % in 97 of 100 decisions (test_the_best_of_those_drawn_is_among_the_best_of_the_pool).

A pool that is dedicated to tenants has no candidate for anybody else (`PoolIndex.dedicated_to`, by the snapshot in
force): `placement` has not sent him there, and where a mistake, or a snapshot that was swapped meanwhile, has, it ends
here (test_no_path_leads_a_stranger_to_a_dedicated_replica).
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
    """Rows to be scored, at least one; or why there is none."""
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
    """Those of one version of the base, and of the adapter where one is asked for."""
    those = pool.rows_with(weights, request.engine_name if request.is_adapter else None)
    if not those:
        return NoReplica("adapter_not_loaded" if pool.rows_with(weights) else "weights_not_loaded")
    able = [row for row in those if row[0] not in excluded] if excluded else those
    if len(able) > SCAN_MAX:
        return _drawn(request, pool, able, excluded)
    return able or NoReplica("all_tried")


def all_candidates(request: RouteRequest, pool: PoolIndex, excluded: Collection[ReplicaId]) -> list[Row] | NoReplica:
    """Every replica that can answer, by id, however large the pool."""
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


def draw(rows: list[Row], key: int, count: int = DRAWS) -> list[Row]:
    """So many by lot, with repetition."""
    drawn, size = [], len(rows)
    for _ in range(count):
        key = (key * _STEP + _OFFSET) & _MASK
        drawn.append(rows[(key >> 33) % size])
    return drawn


def heaviest(rows: Sequence[Row], tie_key: str) -> Row:
    """Of equals, the one with the most weight for this request, whoever else comes or goes: rendezvous hashing."""
    if len(rows) == 1:
        return rows[0]
    key = xxh3_64_intdigest(tie_key.encode())
    weights = [((key ^ row[5]) * _STEP) & _MASK for row in rows]
    return rows[weights.index(max(weights))]


def rendezvous(key: str, replica: ReplicaId) -> bytes:
    """The same for a key that is to find its replica again, whatever the release."""
    return hashlib.blake2b(f"{key}\0{replica}".encode(), digest_size=8).digest()


def _holders(request: RouteRequest, pool: PoolIndex, excluded: Collection[ReplicaId]) -> list[Row] | NoReplica:
    held = pool.rows_of(request.engine_name)
    able = [row for row in held if row[0] not in excluded] if excluded else held
    if not able:
        untried = excluded and all(name in excluded for name in pool.ready)
        return NoReplica("all_tried" if untried else "adapter_not_loaded")
    if len(able) > SCAN_MAX:
        by_id = sorted(able)  # ids are unlike: by the order of a set nothing may be decided
        return _drawn(request, pool, by_id, excluded)
    return able


def _drawn(request: RouteRequest, pool: PoolIndex, rows: list[Row], excluded: Collection[ReplicaId]) -> list[Row]:
    found = {row[0]: row for row in draw(rows, xxh3_64_intdigest(request.tie_key.encode()))}
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
