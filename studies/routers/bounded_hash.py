"""Consistent hashing with bounded loads, as in KubeAI (`PrefixHash`: internal/loadbalancer/balance_chwbl.go).

    ring       xxhash64 of name and number, VIRTUAL_NODES for each replica
    key        the adapter and the first 100 characters of the first user message
    chosen     the first from the key on around the ring with   in flight + 1 <= LOAD_FACTOR x (total + 1) / replicas;
               the first of all if the pool is empty, or if none fits

The first user message belongs to one session, so the session is the key if there is one; else the prompt's first
block; else the request itself. Worked example (test_full_replica_passes_the_session_on): three replicas with 5
requests in all may have 1.25 x 6 / 3 = 2.5 each, so one that has 2 would have 3 and is skipped.
"""

from bisect import bisect_left
from collections.abc import Sequence

from xxhash import xxh64_intdigest

from functions.api.ids import ReplicaId
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import Row
from functions.simulator.router_port import Question

VIRTUAL_NODES = 256
LOAD_FACTOR = 1.25


class BoundedHash:
    def __init__(self) -> None:
        self._members: frozenset[ReplicaId] = frozenset()
        self._ring: list[tuple[int, ReplicaId]] = []

    def pick(self, asked: Question, rows: Sequence[Row], load: OwnLoad) -> Row:
        by_id = {row[0]: row for row in rows}
        if self._members != by_id.keys():
            self._build(by_id)
        total = sum(load.in_flight.get(replica_id, 0) for replica_id in by_id)
        bound = LOAD_FACTOR * (total + 1) / len(rows)
        start = bisect_left(self._ring, (xxh64_intdigest(_key(asked).encode()), ReplicaId("")))
        for step in range(len(self._ring)):
            replica_id = self._ring[(start + step) % len(self._ring)][1]
            if not total or load.in_flight.get(replica_id, 0) + 1 <= bound:
                return by_id[replica_id]
        return by_id[self._ring[start % len(self._ring)][1]]

    def started(self, key: str) -> None:
        """Do nothing: the router has no state about requests."""

    def ended(self, key: str) -> None:
        """Do nothing: the router has no state about requests."""

    def _build(self, members: dict[ReplicaId, Row]) -> None:
        self._members = frozenset(members)
        self._ring = sorted(
            (xxh64_intdigest(f"{replica_id}{number}".encode()), replica_id)
            for replica_id in members
            for number in range(VIRTUAL_NODES)
        )


def _key(asked: Question) -> str:
    text = asked.session or (str(asked.blocks[0]) if asked.blocks else asked.key)
    return f"{asked.model}{text}"
