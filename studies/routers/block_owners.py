"""Table of blocks and the replicas they were sent to, for routers that track their own decisions; LRU.

Blocks are chained, so a table of them is the tree of all prompts: a replica has a prompt's prefix up to the last
block of an unbroken series from the first. Neighbours: `llm_d` has one table for each replica, `aibrix` one for all.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence

from functions.api.ids import ReplicaId


class BlockOwners:
    __slots__ = ("_most", "_owners")

    def __init__(self, most_blocks: int) -> None:
        self._most = max(1, most_blocks)
        self._owners: OrderedDict[int, set[ReplicaId]] = OrderedDict()

    def matched(self, blocks: Sequence[int], among: Collection[ReplicaId]) -> dict[ReplicaId, int]:
        """Return how many blocks each of `among` has from the first on; replicas with none are absent."""
        found: dict[ReplicaId, int] = {}
        here = set(among)
        for count, block in enumerate(blocks, 1):
            here &= self._owners.get(block, set())
            if not here:
                break
            for replica_id in here:
                found[replica_id] = count
        return found

    def enter(self, blocks: Sequence[int], replica_id: ReplicaId) -> None:
        for block in reversed(blocks):  # a prefix outlives its continuations
            self._owners.setdefault(block, set()).add(replica_id)
            self._owners.move_to_end(block)
        while len(self._owners) > self._most:
            self._owners.popitem(last=False)

    def __len__(self) -> int:
        return len(self._owners)
