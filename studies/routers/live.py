"""Routers that a real gateway can run instead of shoal's: the same candidates and predictions, another choice.

They choose among the replicas that have the adapter, which is more than some of them know. If no replica has it, they
choose by the same rule among all that could load it, as if adapters did not exist. A replica without a free slot
rejects the load, and the next one is tried.

Neighbours: `functions.gateway.routing.router` has the interface, `studies.gateway` the process.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.decisions.routing.candidates import all_candidates
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.prediction import predict
from functions.decisions.routing.replicas import PoolIndex, ReplicaView, Row
from functions.decisions.routing.request import NoReplica, Prediction, RouteReason, RouteRequest
from studies.routers.by_count import LeastLoaded, RoundRobin
from studies.routers.cache_aware import CacheAware

_MAX_COLD = 1024  # adapters whose last prompt is stored until a replica loads them


class LiveRouter(Protocol):
    reason: RouteReason

    def pick(
        self, pool: PoolName, model: EngineName, text_blocks: Sequence[int], rows: Sequence[Row], load: OwnLoad
    ) -> Row:
        """Return one of `rows`, which are never empty and ordered by id."""


LiveRouterName = Literal["shoal", "round-robin", "least-loaded", "cache-aware"]

LIVE_ROUTERS: Mapping[LiveRouterName, type[LiveRouter]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "cache-aware": CacheAware,
}


def live_choice(name: LiveRouterName) -> "LiveChoice | None":
    """Return a new instance without state; None for shoal's own router."""
    made = LIVE_ROUTERS.get(name)
    return LiveChoice(name, made()) if made is not None else None


class LiveChoice:
    """A gateway's `OtherChoice`; used by one event loop."""

    def __init__(self, name: str, other: LiveRouter) -> None:
        self.name = name
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
        """Return the replica that should load the adapter, if no replica has it."""
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
