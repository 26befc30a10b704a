"""Bloom filters of the token blocks that a pool's replicas hold, as one gateway knows them.

Each update has a complete filter: the newest counts. A replica whose engine stores blocks in host memory sends two:
for its accelerator, and for both places together. The second table exists from the first such replica on, with the
same columns, and a replica that sends one filter has it in both tables.

`prefix_view` has one `PrefixFilters` for each pool, next to its index of events.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from functions.api.ids import ReplicaId
from functions.decisions.prefix.block_bloom import BloomTable
from functions.fleet.prefix_updates import SILENCE_LIMIT_S, PrefixBloom


@dataclass(frozen=True, slots=True)
class LeadingBlocks:
    """Number of leading blocks of a chain that each replica holds; a replica that is absent holds none."""

    blocks: dict[ReplicaId, int]
    in_host: dict[ReplicaId, int]  # the part that is in host memory only


def held_by(
    replicas: Mapping[int, ReplicaId], anywhere: Mapping[int, int], on_device: Mapping[int, int] | None = None
) -> LeadingBlocks:
    """Return the number of leading blocks by replica, given that number (the depth) by slot. `on_device`: the part of
    `anywhere` that needs no reload; None: all of it."""
    in_host: dict[ReplicaId, int] = {}
    if on_device is not None:
        for slot, depth in anywhere.items():
            here = on_device.get(slot, 0)
            if here < depth:
                in_host[replicas[slot]] = depth - here
    return LeadingBlocks({replicas[slot]: depth for slot, depth in anywhere.items()}, in_host)


def bits_of(slots: Iterable[int]) -> int:
    bits = 0
    for slot in slots:
        bits |= 1 << slot
    return bits


@dataclass(slots=True)
class _Filter:
    column: int
    seen_s: float
    names: int = 0


class PrefixFilters:
    """Filters of one pool's replicas. Owned by one event loop; times are monotonic seconds."""

    def __init__(self) -> None:
        self._device: BloomTable | None = None
        self._anywhere: BloomTable | None = None  # None while no replica has blocks in host memory
        self._filters: dict[ReplicaId, _Filter] = {}
        self._by_column: dict[int, ReplicaId] = {}
        self._live = 0

    def __contains__(self, replica_id: ReplicaId) -> bool:
        return replica_id in self._filters

    def __len__(self) -> int:
        return len(self._filters)

    @property
    def replicas(self) -> set[ReplicaId]:
        return set(self._filters)

    @property
    def names(self) -> int:
        """Sum over all replicas of the block names in their filters."""
        return sum(one.names for one in self._filters.values())

    def silent_replicas(self, now_s: float) -> list[ReplicaId]:
        return [id_ for id_, one in self._filters.items() if now_s - one.seen_s > SILENCE_LIMIT_S]

    def leading_blocks(self, names: Sequence[int]) -> LeadingBlocks | None:
        """Return the number of leading blocks of the chain `names` that each replica holds by its filters; None if no
        replica is known."""
        if self._device is None or not self._live:
            return None
        if self._anywhere is None:
            return held_by(self._by_column, self._device.depths(names, self._live))
        anywhere = self._anywhere.depths(names, self._live)
        return held_by(self._by_column, anywhere, self._device.depths(names, bits_of(anywhere)))

    def fold(self, replica_id: ReplicaId, bloom: PrefixBloom, now_s: float) -> None:
        """Store the replica's newest filters; ValueError if one of them is invalid, and nothing changes."""
        if self._device is None:
            self._device = BloomTable()
        BloomTable.check(bloom.filter)
        if bloom.anywhere:
            BloomTable.check(bloom.anywhere)
        filter_ = self._filters.get(replica_id)
        if filter_ is None:
            filter_ = self._filters[replica_id] = _Filter(self._device.add_column(), now_s)
            self._by_column[filter_.column] = replica_id
            self._live |= 1 << filter_.column
        self._device.put(filter_.column, bloom.filter)
        if bloom.anywhere and self._anywhere is None:
            self._anywhere = BloomTable.like(self._device)
        if self._anywhere is not None:
            self._anywhere.put(filter_.column, bloom.anywhere or bloom.filter)
        filter_.seen_s, filter_.names = now_s, bloom.names

    def forget(self, replica_id: ReplicaId) -> None:
        filter_ = self._filters.pop(replica_id, None)
        if filter_ is None or self._device is None:
            return
        self._device.retire(filter_.column)
        if self._anywhere is not None:
            self._anywhere.wipe(filter_.column)
        del self._by_column[filter_.column]
        self._live &= ~(1 << filter_.column)
