"""Replicas, routing questions and engine states for tests of routers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import PoolIndex, ReplicaView, Row
from functions.simulator.router_port import Question, RouterEngineMetrics

POOL, MODEL = PoolName("base"), EngineName("base")
BLOCK_TOKENS = 16


def rows(*names: str, kv_tokens: int = 16_000) -> list[Row]:
    views = [
        ReplicaView(ReplicaId(name), POOL, "", 0, "ready", 0, 0, 0.0, frozenset(), 50.0, 0.5, 0, "", 0, None, kv_tokens)
        for name in names
    ]
    return PoolIndex(views).rows


def make_question(
    blocks: Sequence[int] = (), prompt_tokens: int | None = None, key: str = "r", session: str | None = None
) -> Question:
    tokens = prompt_tokens if prompt_tokens is not None else max(1, len(blocks) * BLOCK_TOKENS)
    return Question(key, POOL, MODEL, tuple(blocks), BLOCK_TOKENS, tokens, 10, session)


def load(**in_flight: int) -> OwnLoad:
    return OwnLoad({ReplicaId(name): count for name, count in in_flight.items()})


@dataclass
class Told:
    """Engine states set by the test; by default no engine runs a request and nothing is cached."""

    cached: Mapping[str, int] = field(default_factory=dict)
    engines: Mapping[str, RouterEngineMetrics] = field(default_factory=dict)
    ahead_s: Mapping[str, float] = field(default_factory=dict)

    def cached_tokens(self, replica_id: ReplicaId, asked: Question) -> int:
        return self.cached.get(replica_id, 0)

    def engine(self, replica_id: ReplicaId) -> RouterEngineMetrics:
        return self.engines.get(replica_id, RouterEngineMetrics(0, 0, 0.5))

    def first_token_s(self, replica_id: ReplicaId, computed_tokens: float) -> float:
        return self.ahead_s.get(replica_id, 0.0) + self.computing_s(replica_id, computed_tokens)

    def computing_s(self, replica_id: ReplicaId, computed_tokens: float) -> float:
        return computed_tokens / 1000
