"""Port for another router in a simulated gateway: what it is asked, and what it may read of the engines.

SimulatedRouter   picks a replica for each request, and hears of first tokens and of ends
EngineStates      the engines' state at this moment: for routers that know caches by the engines' events, that read
                  metrics every few milliseconds, or that cheat (the oracle)

Neighbours: `experiment.Oracle` finds what a fleet can do at most; the published algorithms of other routers are in
`studies`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import Row

Thing = TypeVar("Thing")


class Draws(Protocol):
    """Chance, as `random.Random` of a seed gives it: decisions have none of their own."""

    def choice(self, seq: Sequence[Thing], /) -> Thing: ...

    def sample(self, population: Sequence[Thing], k: int, /) -> list[Thing]: ...

    def choices(self, population: Sequence[Thing], weights: Sequence[float], /) -> list[Thing]: ...


@dataclass(frozen=True, slots=True)
class Question:
    """One request that is to go somewhere."""

    key: str  # of the request
    pool: PoolName
    model: EngineName
    blocks: Sequence[int]  # of the prompt, in whole blocks; none: nothing is known of its text
    block_tokens: int
    prompt_tokens: int
    output_tokens: int  # as recorded, which nobody but the oracle may read
    session: str | None = None


class SimulatedRouter(Protocol):
    """Of one gateway."""

    def pick(self, asked: Question, rows: Sequence[Row], load: OwnLoad) -> Row:
        """One of `rows`, which are never empty and in the order of their ids. The request then goes there."""

    def started(self, key: str) -> None:
        """The request's first token has come; it may be told of nobody that was picked."""

    def ended(self, key: str) -> None:
        """The request is over, whatever became of it; once or more often."""


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """What an engine's metrics say at this moment."""

    running: int
    waiting: int  # not yet scheduled, which in vLLM includes whoever found the step's token budget used up
    kv_usage_ratio: float


class EngineStates(Protocol):
    def cached_tokens(self, replica_id: ReplicaId, asked: Question) -> int:
        """The prompt's longest beginning that the engine has in its cache, in tokens; at most all but one."""

    def engine(self, replica_id: ReplicaId) -> EngineMetrics: ...

    def first_token_s(self, replica_id: ReplicaId, computed_tokens: float) -> float:
        """Until a prompt of which so much is to be computed would have its first token, if it came now."""

    def computing_s(self, replica_id: ReplicaId, computed_tokens: float) -> float:
        """For how long the engine would compute it."""


MakeRouter = Callable[[EngineStates, Draws], SimulatedRouter]
"""A fresh router for one gateway, which remembers nothing."""
