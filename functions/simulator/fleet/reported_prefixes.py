"""Caches as gateways know them from the engines' events (`prefix.source: events`; `functions.fleet.prefix_view`).

All gateways share one index, since all receive the same events; the delay of some milliseconds is left out. A real
gateway knows a prompt's blocks only for text that it has seen before, which is also the only part that can be cached.
`prefix_cache` reports, `services` queries; `functions.decisions.prefix.block_index` is the real index.
"""

from collections.abc import Sequence

from functions.api.ids import ReplicaId
from functions.decisions.prefix.block_index import BlockIndex
from functions.fleet.prefix_filters import LeadingBlocks, bits_of, held_by

_MAX_NAMES = 20_000_000


class ReportedPrefixes:
    def __init__(self) -> None:
        self._index = BlockIndex(_MAX_NAMES)
        self._replica_of: dict[int, ReplicaId] = {}
        self._live = 0

    def listener_of(self, replica_id: ReplicaId) -> "_Listener":
        """Return a listener for the cache of a replica that starts, and forget its former cache. Raise RuntimeError if
        too many replicas have started."""
        for former in [slot for slot, known in self._replica_of.items() if known == replica_id]:
            self._forget(former)
        slot = self._index.add_slot()
        if slot is None:
            raise RuntimeError("too many replicas have started: set prefix.source of the policy to sent")
        self._replica_of[slot] = replica_id
        self._live |= 1 << slot
        return _Listener(self._index, slot)

    def _forget(self, slot: int) -> None:
        del self._replica_of[slot]
        self._live &= ~(1 << slot)
        self._index.retire(slot)

    def match(self, blocks: Sequence[int]) -> LeadingBlocks:
        """Return how many leading blocks of a chain each replica holds."""
        index = self._index
        index.sweep(len(blocks))
        if not index.has_host_blocks:
            return held_by(self._replica_of, index.depths(blocks, self._live))
        anywhere = index.depths_anywhere(blocks, self._live)
        return held_by(self._replica_of, anywhere, index.depths(blocks, bits_of(anywhere)))


class _Listener:
    def __init__(self, index: BlockIndex, slot: int) -> None:
        self._index = index
        self._slot = slot

    def stored(self, blocks: Sequence[int]) -> None:
        self._index.add(self._slot, blocks)

    def removed(self, blocks: Sequence[int]) -> None:
        self._index.remove(self._slot, blocks)

    def moved_to_host(self, blocks: Sequence[int]) -> None:
        self._index.add_to_host(self._slot, blocks)

    def left_host(self, blocks: Sequence[int]) -> None:
        self._index.remove_from_host(self._slot, blocks)
