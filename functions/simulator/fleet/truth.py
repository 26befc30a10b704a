"""What is so in the engines at this moment: for routers that read caches and metrics, and for the oracle.

Neighbours: `simulator.router_port.Truth` is the question, `fluid_engine` and `prefix_cache` have the answers.
"""

from collections.abc import Mapping

from functions.api.ids import ReplicaId
from functions.simulator.events import Events
from functions.simulator.fleet.fluid_engine import FluidEngine
from functions.simulator.fleet.replica import Replica
from functions.simulator.router_port import EngineNow, Question


class EnginesNow:
    """Of all replicas of a simulation, whether a gateway has heard of them or not."""

    def __init__(self, replicas: Mapping[ReplicaId, Replica], events: Events) -> None:
        self._replicas = replicas
        self._events = events

    def cached_tokens(self, replica_id: ReplicaId, asked: Question) -> int:
        cache = self._replicas[replica_id].engine.cache
        return cache.peek(asked.blocks, asked.prompt_tokens) if cache is not None else 0

    def engine(self, replica_id: ReplicaId) -> EngineNow:
        replica = self._replicas[replica_id]
        engine = replica.engine
        waiting = engine.unscheduled
        usage_ratio = min(1.0, max(0.0, engine.kv_tokens / replica.profile.kv_tokens))
        return EngineNow(engine.running + engine.waiting - waiting, waiting, usage_ratio)

    def first_token_s(self, replica_id: ReplicaId, computed_tokens: float) -> float:
        return self._at_now(replica_id).first_token_s(computed_tokens)

    def computing_s(self, replica_id: ReplicaId, computed_tokens: float) -> float:
        return self._at_now(replica_id).computing_s(computed_tokens)

    def _at_now(self, replica_id: ReplicaId) -> FluidEngine:
        """An engine that is looked at only at changes is brought up to now; what is due is told by its own event."""
        engine = self._replicas[replica_id].engine
        if engine.now_s < self._events.now_s < engine.next_s:
            engine.advance(self._events.now_s)
        return engine
