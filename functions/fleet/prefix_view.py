"""Token blocks that the replicas of a pool hold, as one gateway knows them: updates folded into an index.

Folding is pure bookkeeping with time as an argument. A replica is known while every delta since the start of its
generation, or since a state, has arrived. A missing delta makes it unknown until its state arrives again. A state is
gathered part by part and replaces the old content when it is complete. Silence makes a replica unknown too. Of blooms
the newest counts. All blocks of a pool have one size, that of the first update; replicas with another size are
unknown while a replica with that size is there.

Blocks in host memory only are folded as well. A chain is held up to the first block that is in neither place, and its
blocks that are not on the accelerator must be reloaded (`Held`). Worked example
(test_block_evicted_from_the_accelerator_is_held_in_host_memory): of a chain of 9, r-0 has 3 on the accelerator and
the next 4 in host memory only: 7 blocks, of which 4 are reloaded.

Memory: at most MAX_NAMES distinct names from events in a pool and MAX_NAMES_OF_REPLICA per replica; further names are
ignored. A bloom is 64 KiB per replica.

Worked example (test_a_lost_delta_makes_a_replica_unknown_until_its_state_comes): 6 arrives at sequence 4, so the
replica is unknown and its state is requested; the state as of 6 arrives in two parts, so it is known again; 7
continues from there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from functions.api.ids import PoolName, ReplicaId
from functions.decisions.prefix.block_index import BlockIndex
from functions.fleet.prefix_filters import LeadingBlocks, PrefixFilters, bits_of, held_by
from functions.fleet.prefix_updates import (
    MAX_WANTED,
    SILENCE_LIMIT_S,
    Delta,
    Kind,
    PrefixBloom,
    PrefixUpdate,
    State,
    unpack,
)

MAX_NAMES = 1_000_000  # 100 MB
MAX_NAMES_OF_REPLICA = 262_144  # 4 million tokens of KV cache at 16 tokens a block
MAX_REPLICAS = 20_000
_SWEPT_ENTRIES = 5_000  # a quarter of a second's share: 1 ms


@dataclass(slots=True)
class _Filling:
    """A state whose parts are still arriving."""

    slot: int
    generation: int
    sequence: int
    next_part: int
    names: int


@dataclass(slots=True)
class _ReplicaPrefixes:
    """Knowledge about one replica from events; unknown if `slot` is None."""

    generation: int
    sequence: int
    seen_s: float
    slot: int | None = None
    names: int = 0
    filling: _Filling | None = None


@dataclass(slots=True)
class _Pool:
    block_tokens: int = 0
    index: BlockIndex = field(default_factory=lambda: BlockIndex(MAX_NAMES))
    told: dict[ReplicaId, _ReplicaPrefixes] = field(default_factory=dict)
    by_slot: dict[int, ReplicaId] = field(default_factory=dict)
    live: int = 0  # slots of known replicas, as bits
    filters: PrefixFilters = field(default_factory=PrefixFilters)


class PrefixView:
    """Prefix knowledge of one gateway. Owned by one event loop. All times are monotonic seconds."""

    def __init__(self) -> None:
        self._pools: dict[PoolName, _Pool] = {}
        self._pool_of: dict[ReplicaId, PoolName] = {}
        self.gaps_total = 0  # how often a replica became unknown because an update was lost

    def fold(self, update: PrefixUpdate, now_s: float) -> None:
        """Fold one update; ValueError if its content is impossible for a replica. A replica beyond MAX_REPLICAS is
        ignored, and one whose block size differs from that of its pool's other replicas is forgotten."""
        replica_id, pool_name = ReplicaId(update.replica_id), PoolName(update.pool)
        former = self._pool_of.get(replica_id)
        if former is None and len(self._pool_of) >= MAX_REPLICAS:
            return
        if former is not None and former != pool_name:
            self.forget(replica_id)
        self._pool_of[replica_id] = pool_name
        pool = self._pools.setdefault(pool_name, _Pool())
        if update.block_tokens not in (0, pool.block_tokens):
            if (pool.told.keys() | pool.filters.replicas) - {replica_id}:
                self.forget(replica_id)
                return
            pool = self._replace_pool(pool_name, replica_id, update.block_tokens)
        match update:
            case Delta():
                self._fold_delta(pool, replica_id, update, now_s)
            case State():
                self._fold_state(pool, replica_id, update, now_s)
            case PrefixBloom():
                try:
                    pool.filters.fold(replica_id, update, now_s)
                except ValueError:
                    if replica_id not in pool.told and replica_id not in pool.filters:
                        self.forget(replica_id)
                    raise

    def block_tokens(self, pool: PoolName) -> int:
        """Return the tokens of a block in the pool by its newest update; 0 without any update."""
        known = self._pools.get(pool)
        return known.block_tokens if known is not None else 0

    def held_by_events(self, pool_name: PoolName, names: Sequence[int]) -> LeadingBlocks | None:
        """Return by KV events the number of leading blocks of the chain `names` that each replica holds; None if no
        replica's blocks are known from events."""
        pool = self._pools.get(pool_name)
        if pool is None or not pool.live:
            return None
        index, live = pool.index, pool.live
        if not index.has_host_blocks:
            return held_by(pool.by_slot, index.depths(names, live))
        anywhere = index.depths_anywhere(names, live)
        return held_by(pool.by_slot, anywhere, index.depths(names, bits_of(anywhere)))

    def held_by_bloom(self, pool_name: PoolName, names: Sequence[int]) -> LeadingBlocks | None:
        """Return by bloom filters the number of leading blocks of the chain `names` that each replica holds; None if no
        replica of the pool has sent a filter."""
        pool = self._pools.get(pool_name)
        return pool.filters.leading_blocks(names) if pool is not None else None

    def unknown_replicas(self, pool_name: PoolName) -> tuple[ReplicaId, ...]:
        """Return at most MAX_WANTED replicas that send events and whose state must be requested."""
        pool = self._pools.get(pool_name)
        if pool is None:
            return ()
        return tuple(id_ for id_, told in pool.told.items() if told.slot is None)[:MAX_WANTED]

    def known_replicas(self) -> dict[tuple[PoolName, Kind], int]:
        """Return for each pool and source (`events`, `bloom`) the number of replicas whose blocks are known."""
        found: dict[tuple[PoolName, Kind], int] = {}
        for name, pool in self._pools.items():
            found |= {(name, "events"): len(pool.by_slot)} if pool.told else {}
            found |= {(name, "bloom"): len(pool.filters)} if pool.filters else {}
        return found

    def known_blocks(self) -> dict[tuple[PoolName, Kind], int]:
        """Return for each pool and source (`events`, `bloom`) the sum over replicas of their known blocks; a block at
        two replicas counts twice."""
        found: dict[tuple[PoolName, Kind], int] = {}
        for name, pool in self._pools.items():
            found |= {(name, "events"): sum(told.names for told in pool.told.values())} if pool.told else {}
            found |= {(name, "bloom"): pool.filters.names} if pool.filters else {}
        return found

    def forget(self, replica_id: ReplicaId) -> None:
        """Forget the blocks of a replica that is gone or whose cache is, and its pool if it was the last one there."""
        name = self._pool_of.pop(replica_id, PoolName(""))
        pool = self._pools.get(name)
        if pool is None:
            return
        told = pool.told.pop(replica_id, None)
        if told is not None:
            _drop(pool, told)
        pool.filters.forget(replica_id)
        if not pool.told and not pool.filters:
            del self._pools[name]  # pool names come from the bus; with blooms, a pool takes half a megabyte

    def sweep(self, now_s: float) -> None:
        """Forget replicas silent for over SILENCE_LIMIT_S, and clear some of the index entries that forgotten ones
        left. Call a few times a second."""
        for pool in list(self._pools.values()):
            silent = [id_ for id_, told in pool.told.items() if now_s - told.seen_s > SILENCE_LIMIT_S]
            silent += pool.filters.silent_replicas(now_s)
            for replica_id in silent:
                self.forget(replica_id)
            pool.index.sweep(_SWEPT_ENTRIES)

    def _replace_pool(self, name: PoolName, replica_id: ReplicaId, block_tokens: int) -> _Pool:
        """Replace the pool by an empty one: no other replica has blocks of another size, so all earlier updates are
        void."""
        self._pool_of[replica_id] = name
        pool = self._pools[name] = _Pool(block_tokens)
        return pool

    def _fold_delta(self, pool: _Pool, replica_id: ReplicaId, delta: Delta, now_s: float) -> None:
        told = pool.told.get(replica_id)
        if told is None or delta.generation > told.generation:
            told = _begin_generation(pool, replica_id, delta, now_s)
        elif delta.generation < told.generation:
            return
        told.seen_s = now_s
        if told.slot is None:
            told.sequence = max(told.sequence, delta.sequence)
        elif delta.sequence == told.sequence + 1:
            told.sequence = delta.sequence
            _apply(pool, told, delta)
        elif delta.sequence > told.sequence:
            self._lost_count(pool, told)

    def _fold_state(self, pool: _Pool, replica_id: ReplicaId, state: State, now_s: float) -> None:
        told = pool.told.get(replica_id)
        if told is None:
            told = pool.told[replica_id] = _ReplicaPrefixes(state.generation, state.sequence, now_s)
        if state.generation < told.generation:
            # after a clock was set back, an agent's updates count once its previous generation has been silent for
            # long enough
            return
        told.seen_s = now_s
        if told.slot is not None and state.generation == told.generation:
            if state.sequence <= told.sequence:
                return  # a known replica needs no state
            self._lost_count(pool, told)
        _gather(pool, replica_id, told, state)

    def _lost_count(self, pool: _Pool, told: _ReplicaPrefixes) -> None:
        self.gaps_total += 1
        _drop(pool, told)


def _begin_generation(pool: _Pool, replica_id: ReplicaId, delta: Delta, now_s: float) -> _ReplicaPrefixes:
    """Begin a new generation of a replica's blocks and return its entry. The replica is known if `delta` is the
    generation's first update and a slot is free, else unknown."""
    former = pool.told.get(replica_id)
    if former is not None:
        _drop(pool, former)
    told = pool.told[replica_id] = _ReplicaPrefixes(delta.generation, 0, now_s)
    if delta.sequence <= 1:
        slot = pool.index.add_slot()
        if slot is not None:
            _assign_slot(pool, replica_id, told, slot, 0)
    return told


def _apply(pool: _Pool, told: _ReplicaPrefixes, delta: Delta) -> None:
    slot, index = told.slot, pool.index
    if slot is None:
        return
    removed, host_removed = unpack(delta.removed), unpack(delta.host_removed)
    index.remove(slot, removed)
    index.remove_from_host(slot, host_removed)
    told.names = max(0, told.names - len(removed) - len(host_removed))
    for add, names in ((index.add, unpack(delta.added)), (index.add_to_host, unpack(delta.host_added))):
        taken = names[: max(0, MAX_NAMES_OF_REPLICA - told.names)]
        add(slot, taken)
        told.names += len(taken)


def _gather(pool: _Pool, replica_id: ReplicaId, told: _ReplicaPrefixes, state: State) -> None:
    """Add one part of a state; after the last one the replica is known. A part that does not follow the previous one is
    dropped with the whole state."""
    filling = _filling(pool, told, state)
    if filling is None:
        return
    index = pool.index
    for add, told_names in ((index.add, state.names), (index.add_to_host, state.host_names)):
        names = unpack(told_names)[: max(0, MAX_NAMES_OF_REPLICA - filling.names)]
        add(filling.slot, names)
        filling.names += len(names)
    filling.next_part += 1
    if filling.next_part == state.parts:
        told.filling = None
        _drop(pool, told)
        told.generation, told.sequence = state.generation, state.sequence
        _assign_slot(pool, replica_id, told, filling.slot, filling.names)


def _filling(pool: _Pool, told: _ReplicaPrefixes, state: State) -> _Filling | None:
    """Return the state that this part belongs to; None if the part does not follow the previous one, which drops the
    state, or if no slot is free."""
    filling = told.filling
    if state.part == 0:
        if filling is not None:
            pool.index.retire(filling.slot)
        slot = pool.index.add_slot()
        told.filling = _Filling(slot, state.generation, state.sequence, 0, 0) if slot is not None else None
        return told.filling
    if filling is None:
        return None
    if (filling.generation, filling.sequence, filling.next_part) != (state.generation, state.sequence, state.part):
        pool.index.retire(filling.slot)
        told.filling = None
    return told.filling


def _assign_slot(pool: _Pool, replica_id: ReplicaId, told: _ReplicaPrefixes, slot: int, names: int) -> None:
    told.slot, told.names = slot, names
    pool.by_slot[slot] = replica_id
    pool.live |= 1 << slot


def _drop(pool: _Pool, told: _ReplicaPrefixes) -> None:
    """Make the replica unknown: retire its slot and that of a state still arriving."""
    for slot in (told.slot, told.filling.slot if told.filling is not None else None):
        if slot is not None:
            pool.index.retire(slot)
            pool.by_slot.pop(slot, None)
            pool.live &= ~(1 << slot)
    told.slot, told.filling, told.names = None, None, 0
