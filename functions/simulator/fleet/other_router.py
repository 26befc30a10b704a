"""A router under comparison in the place of shoal's own choice, in the gateway's own router.

It is asked about the gateway's candidates, and told what it may know of a request: the blocks of its prompt, its
session, and (the oracle alone reads it) the length of its answer.
"""

from collections.abc import Callable, Collection, Sequence

from functions.api.ids import ReplicaId
from functions.decisions.routing.candidates import all_candidates
from functions.decisions.routing.choice import NoReplica, Prediction, RouteRequest, predict
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import PoolIndex, ReplicaView
from functions.simulator.fleet.client import Client
from functions.simulator.router_port import Question, SimulatedRouter


class OtherRouter:
    """Of one gateway; `client_of` knows who asks by the request's id."""

    name = "simulated"

    def __init__(self, router: SimulatedRouter, block_tokens: int, client_of: Callable[[str], Client]) -> None:
        self.router = router
        self._block_tokens = block_tokens
        self._client_of = client_of

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
            return rows
        row = self.router.pick(self._question(request, rows[0][6]), rows, load)
        return predict(request, row[6], load)

    def choose_cold(
        self, request: RouteRequest, pool: PoolIndex, load: OwnLoad, excluded: Collection[ReplicaId]
    ) -> ReplicaView | NoReplica:
        rows = [row for row in pool.rows if row[0] not in excluded and row[6].peer_port]
        if not rows:
            return NoReplica("all_tried")
        return self.router.pick(self._question(request, rows[0][6]), rows, load)[6]

    def _question(self, request: RouteRequest, replica: ReplicaView) -> Question:
        client = self._client_of(request.tie_key)
        asked = client.asked
        return Question(
            client.key, replica.pool, request.engine_name, client.blocks_for(is_adapter=request.is_adapter),
            self._block_tokens, asked.prompt_tokens, asked.output_tokens, asked.session,
        )  # fmt: skip
