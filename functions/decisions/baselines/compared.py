"""Another router's algorithm in the place of shoal's: the same candidates, the same predictions, its own choice.

Of an adapter's holders it chooses one, which is more than some of them know by themselves. Where nobody holds the
adapter, it chooses by the same rule among all who could load it, as it would do were the adapter none of its business;
who has no room says so, and the next one is asked.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence

import msgspec

from functions.api.ids import EngineName, ReplicaId
from functions.decisions.baselines.protocol import Baseline
from functions.decisions.routing.candidates import all_candidates
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.prediction import predict
from functions.decisions.routing.replicas import PoolIndex, ReplicaView
from functions.decisions.routing.request import NoReplica, Prediction, RouteRequest

_MAX_COLD = 1024  # adapters whose last prompt is remembered until somebody is asked for them


class Compared:
    """Owned by one event loop."""

    def __init__(self, other: Baseline) -> None:
        self._other = other
        self._cold: OrderedDict[EngineName, Sequence[int]] = OrderedDict()

    def choose(
        self,
        request: RouteRequest,
        pool: PoolIndex,
        text_blocks: Sequence[int],
        load: OwnLoad,
        excluded: Collection[ReplicaId],
    ) -> Prediction | NoReplica:
        rows = all_candidates(request, pool, excluded)
        if isinstance(rows, NoReplica):
            self._remember(request.engine_name, text_blocks)
            return rows
        row = self._other.pick(rows[0][6].pool, request.engine_name, text_blocks, rows, load)
        return msgspec.structs.replace(predict(request, row[6], load), reason=self._other.reason)

    def choose_cold(
        self, request: RouteRequest, pool: PoolIndex, load: OwnLoad, excluded: Collection[ReplicaId]
    ) -> ReplicaView | NoReplica:
        """Who is asked to load the adapter of a request that found nobody."""
        rows = [row for row in pool.rows if row[0] not in excluded and row[6].peer_port]
        if not rows:
            return NoReplica("all_tried")
        text_blocks = self._cold.get(request.engine_name, ())
        return self._other.pick(rows[0][6].pool, request.engine_name, text_blocks, rows, load)[6]

    def _remember(self, name: EngineName, text_blocks: Sequence[int]) -> None:
        self._cold[name] = text_blocks
        self._cold.move_to_end(name)
        if len(self._cold) > _MAX_COLD:
            self._cold.popitem(last=False)
