"""Token blocks that the replicas of a pool hold, as one gateway knows them: updates folded into an index.

Folding is pure bookkeeping with time as an argument. A replica is known while every delta since its generation's begin,
or since a state, has been heard; one that is missing makes it unknown (nothing is believed of it) until its state was
told again. A state is gathered part by part beside what is believed, and takes its place when it is whole. Silence
makes unknown too. Of blooms the newest counts, and none is older than the silence. A pool's blocks have one size, that
of whoever was heard first; replicas with another are unknown while one of those is there.

Blocks that a replica has in host memory alone are folded beside the others. A chain is held there as far as each block
is in one place or the other, and what of it is not on the accelerator must be reloaded (`Held`).
Worked example (test_what_left_the_accelerator_is_held_in_host_memory): of a chain of 9, r-0 has 3 on the accelerator,
the next 4 in host memory alone: 7 blocks, of which 4 are reloaded.

Memory: MAX_NAMES distinct names of events in a pool and MAX_NAMES_OF_REPLICA of each replica, beyond which nothing more
is remembered of it; a bloom is 64 KiB for each replica.

Worked example (test_a_lost_delta_makes_a_replica_unknown_until_its_state_comes): at sequence 4 comes 6: unknown, and
wanted; the state as of 6 in two parts: known again; 7 goes on from there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from functions.api.ids import PoolName, ReplicaId
from functions.decisions.prefix.block_index import BlockIndex
from functions.fleet.prefix_filters import Held, PrefixFilters, bits_of, held_by
from functions.fleet.prefix_updates import MAX_WANTED, SILENCE_LIMIT_S, Bloom, Delta, Kind, PrefixUpdate, State, unpack

MAX_NAMES = 1_000_000  # 100 MB
MAX_NAMES_OF_REPLICA = 262_144  # of 16 tokens: 4 million tokens of KV cache
MAX_REPLICAS = 20_000
_SWEPT_ENTRIES = 5_000  # a quarter of a second's share: 1 ms


@dataclass(slots=True)
class _Filling:
    """A state on its way."""

    slot: int
    generation: int
    sequence: int
    next_part: int
    names: int


@dataclass(slots=True)
class _ReplicaPrefixes:
    """What is known of one replica by events. `slot` None: unknown."""

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
    live: int = 0  # the slots of replicas that are known, as bits
    filters: PrefixFilters = field(default_factory=PrefixFilters)


class PrefixView:
    """Owned by one event loop. All times are monotonic seconds."""

    def __init__(self) -> None:
        self._pools: dict[PoolName, _Pool] = {}
        self._pool_of: dict[ReplicaId, PoolName] = {}
        self.gaps_total = 0  # times that a replica became unknown because an update of it was lost

    def fold(self, update: PrefixUpdate, now_s: float) -> None:
        """Take in one message; ValueError where it holds what no replica can say."""
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
            pool = self._started_anew(pool_name, replica_id, update.block_tokens)
        match update:
            case Delta():
                self._fold_delta(pool, replica_id, update, now_s)
            case State():
                self._fold_state(pool, replica_id, update, now_s)
            case Bloom():
                try:
                    pool.filters.fold(replica_id, update, now_s)
                except ValueError:
                    if replica_id not in pool.told and replica_id not in pool.filters:
                        self.forget(replica_id)
                    raise

    def block_tokens(self, pool: PoolName) -> int:
        """The size of the pool's blocks, by its newest update; 0: nothing was heard."""
        known = self._pools.get(pool)
        return known.block_tokens if known is not None else 0

    def held_by_events(self, pool_name: PoolName, names: Sequence[int]) -> Held | None:
        """How many leading blocks each replica holds; None where nothing is known of any replica."""
        pool = self._pools.get(pool_name)
        if pool is None or not pool.live:
            return None
        index, live = pool.index, pool.live
        if not index.has_host_blocks:
            return held_by(pool.by_slot, index.depths(names, live))
        anywhere = index.depths_anywhere(names, live)
        return held_by(pool.by_slot, anywhere, index.depths(names, bits_of(anywhere)))

    def held_by_bloom(self, pool_name: PoolName, names: Sequence[int]) -> Held | None:
        """The same by filters."""
        pool = self._pools.get(pool_name)
        return pool.filters.held(names) if pool is not None else None

    def unknown(self, pool_name: PoolName) -> tuple[ReplicaId, ...]:
        """Replicas that tell events, and of which the state must be asked."""
        pool = self._pools.get(pool_name)
        if pool is None:
            return ()
        return tuple(id_ for id_, told in pool.told.items() if told.slot is None)[:MAX_WANTED]

    def known_replicas(self) -> dict[tuple[PoolName, Kind], int]:
        """By pool and source, of how many replicas the blocks are known."""
        found: dict[tuple[PoolName, Kind], int] = {}
        for name, pool in self._pools.items():
            found |= {(name, "events"): len(pool.by_slot)} if pool.told else {}
            found |= {(name, "bloom"): len(pool.filters)} if pool.filters else {}
        return found

    def known_blocks(self) -> dict[tuple[PoolName, Kind], int]:
        """The same, their blocks added up."""
        found: dict[tuple[PoolName, Kind], int] = {}
        for name, pool in self._pools.items():
            found |= {(name, "events"): sum(told.names for told in pool.told.values())} if pool.told else {}
            found |= {(name, "bloom"): pool.filters.names} if pool.filters else {}
        return found

    def forget(self, replica_id: ReplicaId) -> None:
        """The replica is gone, or its cache is."""
        name = self._pool_of.pop(replica_id, PoolName(""))
        pool = self._pools.get(name)
        if pool is None:
            return
        told = pool.told.pop(replica_id, None)
        if told is not None:
            _drop(pool, told)
        pool.filters.forget(replica_id)
        if not pool.told and not pool.filters:
            del self._pools[name]  # names of pools come from the bus: half a megabyte each, with blooms

    def sweep(self, now_s: float) -> None:
        """A few times a second: forget the silent, wipe what was forgotten."""
        for pool in list(self._pools.values()):
            silent = [id_ for id_, told in pool.told.items() if now_s - told.seen_s > SILENCE_LIMIT_S]
            silent += pool.filters.silent(now_s)
            for replica_id in silent:
                self.forget(replica_id)
            pool.index.sweep(_SWEPT_ENTRIES)

    def _started_anew(self, name: PoolName, replica_id: ReplicaId, block_tokens: int) -> _Pool:
        """Nobody else tells of blocks of another size: what the replica said so far means nothing any more."""
        self._pool_of[replica_id] = name
        pool = self._pools[name] = _Pool(block_tokens)
        return pool

    def _fold_delta(self, pool: _Pool, replica_id: ReplicaId, delta: Delta, now_s: float) -> None:
        told = pool.told.get(replica_id)
        if told is None or delta.generation > told.generation:
            told = _begin(pool, replica_id, delta, now_s)
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
            return  # an agent whose clock was set back begins to count when its former self has been silent for long
        told.seen_s = now_s
        if told.slot is not None and state.generation == told.generation:
            if state.sequence <= told.sequence:
                return  # what is known needs no state
            self._lost_count(pool, told)
        _gather(pool, replica_id, told, state)

    def _lost_count(self, pool: _Pool, told: _ReplicaPrefixes) -> None:
        self.gaps_total += 1
        _drop(pool, told)


def _begin(pool: _Pool, replica_id: ReplicaId, delta: Delta, now_s: float) -> _ReplicaPrefixes:
    """A generation that is new to us: known from its beginning, or not at all."""
    former = pool.told.get(replica_id)
    if former is not None:
        _drop(pool, former)
    told = pool.told[replica_id] = _ReplicaPrefixes(delta.generation, 0, now_s)
    if delta.sequence <= 1:
        slot = pool.index.begin()
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
    """One more part of a state; with the last one the replica is known."""
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
    """Where this part goes; None where it does not follow the one before."""
    filling = told.filling
    if state.part == 0:
        if filling is not None:
            pool.index.retire(filling.slot)
        slot = pool.index.begin()
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
    """The replica is unknown from now on."""
    for slot in (told.slot, told.filling.slot if told.filling is not None else None):
        if slot is not None:
            pool.index.retire(slot)
            pool.by_slot.pop(slot, None)
            pool.live &= ~(1 << slot)
    told.slot, told.filling, told.names = None, None, 0
