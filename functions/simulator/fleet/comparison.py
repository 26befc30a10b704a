"""Routers and admission policies under comparison, which replace shoal's own in a simulated gateway.

    OtherRouter       another algorithm chooses among the gateway's candidates; it gets the prompt's blocks, the
                      session and the length of the answer (only the oracle reads it)
    ModelledEngines   the engine state that such a router may read: current caches and metrics
    OpenAdmission     dispatches requests on arrival, as other routers do; NoLadder: no overload ladder

`simulator.router_port` is the port; the published algorithms are in `studies.routers`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from functions.api.ids import PoolName, ReplicaId
from functions.decisions.admission.queue import Admission
from functions.decisions.overload.gateway_share import QueueLadder
from functions.decisions.overload.ladder import OFF, Rungs
from functions.decisions.routing.candidates import all_candidates
from functions.decisions.routing.choice import NoReplica, Prediction, RouteRequest, predict
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import PoolIndex, ReplicaView
from functions.gateway.admission.queue import AdmissionQueues, QueuedRequest
from functions.gateway.request.request import Admitted
from functions.simulator.events import Events
from functions.simulator.fleet.client import Client
from functions.simulator.fleet.fluid_engine import FluidEngine
from functions.simulator.fleet.replica import Replica
from functions.simulator.router_port import Question, RouterEngineMetrics, SimulatedRouter


class OtherRouter:
    """Adapter from one gateway to another router; `client_of` finds a client by the request's id."""

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
        asked = client.request
        return Question(
            client.key, replica.pool, request.engine_name, client.blocks_for(is_adapter=request.is_adapter),
            self._block_tokens, asked.prompt_tokens, asked.output_tokens, asked.session,
        )  # fmt: skip


class ModelledEngines:
    """State of all replicas of a simulation, including those that a gateway does not know yet."""

    def __init__(self, replicas: Mapping[ReplicaId, Replica], events: Events) -> None:
        self._replicas = replicas
        self._events = events

    def cached_tokens(self, replica_id: ReplicaId, asked: Question) -> int:
        cache = self._replicas[replica_id].engine.cache
        return cache.peek(asked.blocks, asked.prompt_tokens) if cache is not None else 0

    def engine(self, replica_id: ReplicaId) -> RouterEngineMetrics:
        replica = self._replicas[replica_id]
        engine = replica.engine
        waiting = engine.unscheduled
        usage_ratio = min(1.0, max(0.0, engine.kv_tokens / replica.profile.kv_tokens))
        return RouterEngineMetrics(engine.running + engine.waiting - waiting, waiting, usage_ratio)

    def first_token_s(self, replica_id: ReplicaId, computed_tokens: float) -> float:
        return self._at_now(replica_id).first_token_s(computed_tokens)

    def computing_s(self, replica_id: ReplicaId, computed_tokens: float) -> float:
        return self._at_now(replica_id).computing_s(computed_tokens)

    def _at_now(self, replica_id: ReplicaId) -> FluidEngine:
        """Return the engine, advanced to now if no change is due; a due change has its own event."""
        engine = self._replicas[replica_id].engine
        if engine.now_s < self._events.now_s < engine.next_s:
            engine.advance(self._events.now_s)
        return engine


class NoLadder(QueueLadder):
    """An overload ladder that never sheds, shifts or borrows."""

    def update_rungs(self, admission: Admission, now_s: float, *, shiftable_ratio: float = 0.0) -> Rungs:
        return OFF


class OpenAdmission(AdmissionQueues):
    """Admission that dispatches every request on arrival."""

    def submit(self, exchange: QueuedRequest) -> None:
        exchange.dispatched()

    def shift_ratio(self, pool: PoolName) -> float:
        return 0.0

    def count_shifted(self, admitted: Admitted) -> None:
        """Do nothing: there are no counts."""

    def count_returned(self, admitted: Admitted) -> None:
        """Do nothing: there are no counts."""
