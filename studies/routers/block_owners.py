"""Which replicas have had which blocks, as routers believe that learn it from their own decisions: one table, LRU.

Since blocks are chained, a table of them is the tree of all prompts: a replica has a prompt's beginning as far as it is
listed with each block from the first on. Neighbours: `llm_d` keeps one for each replica, `aibrix` one for all.
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
        """How many blocks each of `among` has, from the first on; absent: none."""
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
        for block in reversed(blocks):  # a beginning outlives its ends
            self._owners.setdefault(block, set()).add(replica_id)
            self._owners.move_to_end(block)
        while len(self._owners) > self._most:
            self._owners.popitem(last=False)

    def __len__(self) -> int:
        return len(self._owners)
