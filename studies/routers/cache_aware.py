"""SGLang's model gateway, policy `cache_aware`, with the defaults of its command line.

    imbalanced      max - min > ABS and max > REL x min requests in flight    -> the least loaded
    well matched    matched / whole length of the prompt > CACHE_THRESHOLD    -> the replica with the longest match
    otherwise                                                                 -> the least loaded

The prompt is then assigned to the chosen replica. There is one tree a model. SGLang's has characters, this one the
blocks of 512 bytes that the gateway has hashed: the hashes are chained, so a table of them is that tree. Beyond
MAX_BLOCKS the least recently used ones are dropped (SGLang: 2^26 characters a tree). Worked example
(test_worked_example_from_the_prologue): of a prompt of ten blocks four are known at A: 0.4 > 0.3, A. Three are not
enough; and with 70 requests at A and 2 at B it is B in any case.
"""

from collections import OrderedDict
from collections.abc import Sequence

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import Row
from functions.decisions.routing.request import RouteReason
from studies.routers.by_count import least_loaded

CACHE_THRESHOLD = 0.3
BALANCE_ABS = 64
BALANCE_REL = 1.5
MAX_BLOCKS = 2**26 // 512


class CacheAware:
    """Router state, used by one event loop."""

    reason: RouteReason = "cache_aware"

    def __init__(self) -> None:
        self._owners: OrderedDict[int, dict[ReplicaId, None]] = OrderedDict()  # by block, the latest last

    def pick(
        self, pool: PoolName, model: EngineName, text_blocks: Sequence[int], rows: Sequence[Row], load: OwnLoad
    ) -> Row:
        counts = [load.in_flight.get(row[0], 0) for row in rows]
        most, fewest = max(counts), min(counts)
        chosen = None
        if not (most - fewest > BALANCE_ABS and most > BALANCE_REL * fewest):
            chosen = self._best_match(text_blocks, rows)
        chosen = chosen or least_loaded(rows, load)
        self._insert(text_blocks, chosen[0])
        return chosen

    def __len__(self) -> int:
        return len(self._owners)

    def _best_match(self, text_blocks: Sequence[int], rows: Sequence[Row]) -> Row | None:
        by_id = {row[0]: row for row in rows}
        matched, found = 0, None
        for block in text_blocks:
            here = [each for each in self._owners.get(block, ()) if each in by_id]
            if not here:
                break
            matched, found = matched + 1, by_id[here[-1]]
        return found if text_blocks and matched / len(text_blocks) > CACHE_THRESHOLD else None

    def _insert(self, text_blocks: Sequence[int], replica_id: ReplicaId) -> None:
        for block in text_blocks:
            owners = self._owners.setdefault(block, {})
            owners.pop(replica_id, None)
            owners[replica_id] = None
            self._owners.move_to_end(block)
        while len(self._owners) > MAX_BLOCKS:
            self._owners.popitem(last=False)
