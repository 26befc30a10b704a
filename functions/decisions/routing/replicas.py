"""Replicas of a pool as routing sees them: one frozen view each, and an index for partial walks.

`PoolView` is a picture of a whole pool at one moment. `PoolIndex` is kept up to date by the receiver of the heartbeats
(`functions.fleet.view`), at O(1) a heartbeat, so that a decision neither filters nor copies. It has the ready replicas
as rows of plain numbers, the holders of each adapter, and the sum for the pool's utilization. It is valid until the
next heartbeat: decide within one call.

Neighbours: `choice` reads rows; `functions.fleet.view` puts and drops them.
"""

from bisect import bisect_left
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from xxhash import xxh3_64_intdigest

from functions.api.ids import Digest, EngineName, PoolName, ReplicaId, TenantId
from functions.decisions.distribution.bloom import Bloom
from functions.decisions.routing.crowding import crowding_line

# warm: the base is loaded; the replica receives no requests until it is promoted
ReplicaPhase = Literal["starting", "ready", "warm", "draining", "hung", "dead"]


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """State of one replica as a gateway knows it from heartbeats."""

    id: ReplicaId
    pool: PoolName
    host: str
    port: int
    phase: ReplicaPhase
    running: int
    waiting: int
    kv_usage_ratio: float
    adapters: frozenset[EngineName]
    service_ms: float  # time between two completions: each waiting request adds this much to the next one's wait
    prefill_ms_per_token: float
    peer_port: int = 0  # port on which its agent loads adapters and serves chunks; 0: none
    zone: str = ""
    adapter_room: int = 0  # number of adapters that it can load without a withdrawal
    on_disk: Bloom | None = None  # the digests on its node's disk; None: unknown
    kv_capacity_tokens: int = 0  # size of its KV cache; 0: unknown
    withdrawn: frozenset[EngineName] = frozenset()  # recently withdrawn adapters: available again immediately
    weights: Digest | None = None  # base weights that its engine has loaded; None: unknown
    reload_ms_per_token: float = 0.0  # from host memory to its accelerator; 0: no host cache

    def has_on_disk(self, name: EngineName) -> bool:
        """Return True if the adapter's files are probably on the disk of the node, by its last report; False if nothing
        is known."""
        return self.on_disk is not None and self.on_disk.holds_adapter(name)


@dataclass(frozen=True, slots=True)
class PoolView:
    """The live part of a pool at one moment; replicas sorted by id."""

    name: PoolName
    replicas: tuple[ReplicaView, ...]
    dedicated_to: frozenset[TenantId] = frozenset()  # empty: shared by all tenants


EVERY = EngineName("")  # entry of `PoolIndex.changed` that stands for every model

# id, running and waiting, waiting alone, the two rates, the id's hash for ties, the view, the `crowding` line's two
# numbers. A tuple, because the loop that runs for each request unpacks it at half the cost of 32 objects' attributes.
Row = tuple[ReplicaId, int, int, float, float, int, ReplicaView, float, float]


class PoolIndex:
    """Index of one pool's ready replicas. Owned by one event loop."""

    __slots__ = (
        "_by_weights",
        "_held",
        "_ids",
        "_ring",
        "changed",
        "dedicated_to",
        "fresh",
        "holders",
        "known",
        "kv_usage_sum",
        "ready",
        "rows",
        "weights",
    )

    def __init__(self, replicas: Iterable[ReplicaView] = (), dedicated_to: frozenset[TenantId] = frozenset()) -> None:
        self.dedicated_to = dedicated_to  # other tenants' requests find no replica here; empty: shared
        self.known = 0  # replicas in any phase
        self.ready: dict[ReplicaId, Row] = {}
        self.rows: list[Row] = []  # ready replicas by id, so that samples do not depend on the order of joining
        self.holders: dict[EngineName, set[ReplicaId]] = {}  # ready replicas by adapter
        self.weights: dict[Digest, set[ReplicaId]] = {}  # ready replicas by loaded base weights
        self.kv_usage_sum = 0.0
        self.fresh: dict[ReplicaId, float] = {}  # recently ready replicas: not yet assumed as homes (`homes`)
        self.changed: set[EngineName] = set()  # adapters with new holders; EVERY: a replica has become ready
        self._ids: list[ReplicaId] = []
        self._held: dict[EngineName, list[Row]] = {}  # cache, cleared by each change
        self._by_weights: dict[tuple[Digest, EngineName | None], list[Row]] = {}  # likewise
        self._ring: list[tuple[int, ReplicaId]] = []  # cache, cleared when a replica joins or leaves
        for replica in replicas:
            self.put(None, replica)

    def put(self, former: ReplicaView | None, view: ReplicaView) -> None:
        """Replace a replica's view; `former` is None for a new replica. One that becomes ready later is listed as
        fresh."""
        if former is None:
            self.known += 1
        elif former.phase == "ready":
            if view.phase == "ready":
                self._change(former, view)
            else:
                self._leave(former)
            return
        if view.phase == "ready":
            self._enter(view)
            if former is not None and len(self.ready) > 1:
                self.fresh[view.id] = 0.0
            self.changed.add(EVERY)

    def drop(self, view: ReplicaView) -> None:
        self.known -= 1
        if view.phase == "ready":
            self._leave(view)

    @property
    def utilization_ratio(self) -> float:
        """Mean share of the KV caches in use, over ready replicas; 0 without any."""
        return self.kv_usage_sum / len(self.ready) if self.ready else 0.0

    def rows_of(self, name: EngineName) -> list[Row]:
        """Return the rows of the ready replicas that hold the adapter, in arbitrary order."""
        rows = self._held.get(name)
        if rows is None:
            rows = [self.ready[holder] for holder in self.holders.get(name, ())]
            if rows:  # do not cache empty results: invented names must not fill the memory
                self._held[name] = rows
        return rows

    def rows_with(self, weights: Digest, adapter: EngineName | None = None) -> list[Row]:
        """Return the rows of replicas that have loaded these base weights (and this adapter), by id. If no replica of
        the pool reports its weights (older agents), all count."""
        rows = self._by_weights.get((weights, adapter))
        if rows is None:
            those: AbstractSet[ReplicaId] = self.ready.keys()
            if self.weights:
                those = self.weights.get(weights, set())
            if adapter is not None:
                those = those & self.holders.get(adapter, set())
            rows = [self.ready[replica_id] for replica_id in sorted(those)]
            if rows:
                self._by_weights[weights, adapter] = rows
        return rows

    def ring(self) -> list[tuple[int, ReplicaId]]:
        """Return the ready replicas sorted by their hash, the one that also breaks ties."""
        if not self._ring:
            self._ring = sorted((row[5], row[0]) for row in self.rows)
        return self._ring

    def _enter(self, view: ReplicaView) -> None:
        self._forget()
        self._ring = []
        row = _row_of(view, xxh3_64_intdigest(view.id.encode()))
        at = bisect_left(self._ids, view.id)
        self._ids.insert(at, view.id)
        self.rows.insert(at, row)
        self.ready[view.id] = row
        self.kv_usage_sum += view.kv_usage_ratio
        self._announce(view.id, view.adapters)
        self._has_loaded(view)

    def _change(self, former: ReplicaView, view: ReplicaView) -> None:
        self._forget()
        row = _row_of(view, self.ready[view.id][5])
        self.rows[bisect_left(self._ids, view.id)] = self.ready[view.id] = row
        self.kv_usage_sum += view.kv_usage_ratio - former.kv_usage_ratio
        if view.weights != former.weights:
            self._had_loaded(former)
            self._has_loaded(view)
        if view.adapters != former.adapters:
            self._withdraw(view.id, former.adapters - view.adapters)
            self._announce(view.id, view.adapters - former.adapters)
            self.changed |= view.adapters - former.adapters

    def _leave(self, view: ReplicaView) -> None:
        self._forget()
        self._ring = []
        at = bisect_left(self._ids, view.id)
        del self.ready[view.id], self._ids[at], self.rows[at]
        self.fresh.pop(view.id, None)
        self.kv_usage_sum = self.kv_usage_sum - view.kv_usage_ratio if self.ready else 0.0
        self._withdraw(view.id, view.adapters)
        self._had_loaded(view)

    def _forget(self) -> None:
        self._held.clear()
        self._by_weights.clear()

    def _has_loaded(self, view: ReplicaView) -> None:
        if view.weights is not None:
            self.weights.setdefault(view.weights, set()).add(view.id)

    def _had_loaded(self, view: ReplicaView) -> None:
        if view.weights is not None:
            those = self.weights[view.weights]
            those.discard(view.id)
            if not those:
                del self.weights[view.weights]

    def _announce(self, replica_id: ReplicaId, names: Iterable[EngineName]) -> None:
        for name in names:
            self.holders.setdefault(name, set()).add(replica_id)

    def _withdraw(self, replica_id: ReplicaId, names: Iterable[EngineName]) -> None:
        for name in names:
            holders = self.holders[name]
            holders.discard(replica_id)
            if not holders:
                del self.holders[name]


def _row_of(view: ReplicaView, lot: int) -> Row:
    outstanding, service_ms, prefill_ms = view.running + view.waiting, view.service_ms, view.prefill_ms_per_token
    token_ms, base_ms = crowding_line(outstanding, view.waiting, service_ms, prefill_ms)
    return (view.id, outstanding, view.waiting, service_ms, prefill_ms, lot, view, token_ms, base_ms)
