"""Port for another router in a simulated gateway: its requests, and the engine state that it may read.

    SimulatedRouter   picks a replica for each request, and is notified of first tokens and ends
    EngineStates      current engine state, for routers that know caches by the engines' events, that read
                      metrics every few milliseconds, or that cheat (the oracle)

`experiment.Oracle` shows what a fleet can do at best; `studies` has other routers' published algorithms.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import Row

Thing = TypeVar("Thing")


class Draws(Protocol):
    """Source of randomness, such as `random.Random` with a seed."""

    def choice(self, seq: Sequence[Thing], /) -> Thing: ...

    def sample(self, population: Sequence[Thing], k: int, /) -> list[Thing]: ...

    def choices(self, population: Sequence[Thing], weights: Sequence[float], /) -> list[Thing]: ...


@dataclass(frozen=True, slots=True)
class Question:
    """One request to route."""

    key: str  # key of the request
    pool: PoolName
    model: EngineName
    blocks: Sequence[int]  # the prompt's whole blocks; empty if its text is unknown
    block_tokens: int
    prompt_tokens: int
    output_tokens: int  # as recorded; only the oracle may read it
    session: str | None = None


class SimulatedRouter(Protocol):
    """Router of one gateway."""

    def pick(self, asked: Question, rows: Sequence[Row], load: OwnLoad) -> Row:
        """Return one of `rows`, which are not empty and sorted by id. The request is then sent there."""

    def started(self, key: str) -> None:
        """Receive notice of a request's first token, even of a request that this router did not pick."""

    def ended(self, key: str) -> None:
        """Receive notice of a request's end, in any way; may be called more than once."""


@dataclass(frozen=True, slots=True)
class RouterEngineMetrics:
    """Current metrics of an engine."""

    running: int
    waiting: int  # not scheduled yet; in vLLM that includes requests beyond the step's token budget
    kv_usage_ratio: float


class EngineStates(Protocol):
    def cached_tokens(self, replica_id: ReplicaId, asked: Question) -> int:
        """Return the tokens of the prompt's longest cached prefix; at most all but one."""

    def engine(self, replica_id: ReplicaId) -> RouterEngineMetrics: ...

    def first_token_s(self, replica_id: ReplicaId, computed_tokens: float) -> float:
        """Return the seconds to the first token of a prompt with so many tokens to compute, if it arrived now."""

    def computing_s(self, replica_id: ReplicaId, computed_tokens: float) -> float:
        """Return the seconds in which the engine would compute this many prompt tokens, while its current sequences
        decode."""


MakeRouter = Callable[[EngineStates, Draws], SimulatedRouter]
"""Factory of a router without state for one gateway."""
