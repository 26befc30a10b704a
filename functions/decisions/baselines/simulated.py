"""The routers that the simulator can compare, by name: shoal's, those that a gateway offers, and those only run here.

Neighbours: `protocol` says what they are asked; the simulator's `fleet.truth` answers those that need the truth.
"""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

from functions.decisions.baselines import baseline
from functions.decisions.baselines.aibrix import AIBrix
from functions.decisions.baselines.bounded_hash import BoundedHash
from functions.decisions.baselines.dynamo import SOFT_TEMPERATURE, Dynamo
from functions.decisions.baselines.llm_d import LLMD, LLMDPrecise
from functions.decisions.baselines.oracle import Oracle
from functions.decisions.baselines.power_of_two import PowerOfTwo
from functions.decisions.baselines.protocol import Baseline, Draws, Question, SimulatedRouter, Truth
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import Row

SimulatedRouterName = Literal[
    "shoal", "oracle", "round-robin", "least-loaded", "power-of-two", "bounded-hash", "cache-aware", "llm-d",
    "llm-d-precise", "aibrix", "dynamo", "dynamo-soft",
]  # fmt: skip
ROUTERS: tuple[SimulatedRouterName, ...] = get_args(SimulatedRouterName)


def simulated_router(name: SimulatedRouterName, truth: Truth, rng: Draws) -> SimulatedRouter | None:
    """A fresh one, which remembers nothing; None for shoal's own."""
    made: dict[SimulatedRouterName, Callable[[], SimulatedRouter]] = {
        "oracle": lambda: Oracle(truth),
        "power-of-two": lambda: PowerOfTwo(rng),
        "bounded-hash": BoundedHash,
        "llm-d": lambda: LLMD(truth, rng),
        "llm-d-precise": lambda: LLMDPrecise(truth, rng),
        "aibrix": lambda: AIBrix(rng),
        "dynamo": lambda: Dynamo(truth, rng),
        "dynamo-soft": lambda: Dynamo(truth, rng, SOFT_TEMPERATURE),
    }
    if name in made:
        return made[name]()
    offered = baseline(name)  # type: ignore[arg-type]
    return None if offered is None else _Offered(offered)


class _Offered:
    """A router that a gateway has, asked as it is there."""

    def __init__(self, offered: Baseline) -> None:
        self._offered = offered

    def pick(self, asked: Question, rows: Sequence[Row], load: OwnLoad) -> Row:
        return self._offered.pick(asked.pool, asked.model, asked.blocks, rows, load)

    def started(self, key: str) -> None:
        """It remembers no request."""

    def ended(self, key: str) -> None:
        """It remembers no request."""
