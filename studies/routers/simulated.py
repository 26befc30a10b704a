"""Routers of a simulated fleet by name: shoal's own, the oracle, and other routers' published algorithms."""

from collections.abc import Callable, Mapping, Sequence

from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import Row
from functions.simulator.experiment import oracle
from functions.simulator.router_port import Draws, EngineStates, MakeRouter, Question, SimulatedRouter
from studies.routers.aibrix import AIBrix
from studies.routers.bounded_hash import BoundedHash
from studies.routers.by_count import LeastLoaded, PowerOfTwo, RoundRobin
from studies.routers.cache_aware import CacheAware
from studies.routers.dynamo import SOFT_TEMPERATURE, Dynamo
from studies.routers.live import LiveRouter
from studies.routers.llm_d import LLMD, LLMDPrecise


class _Live:
    """Adapter that runs a live router in a simulated fleet."""

    def __init__(self, router: LiveRouter) -> None:
        self._router = router

    def pick(self, asked: Question, rows: Sequence[Row], load: OwnLoad) -> Row:
        return self._router.pick(asked.pool, asked.model, asked.blocks, rows, load)

    def started(self, key: str) -> None:
        """Do nothing: the router has no state about requests."""

    def ended(self, key: str) -> None:
        """Do nothing: the router has no state about requests."""


def _live(router: Callable[[], LiveRouter]) -> MakeRouter:
    def make_router(engines: EngineStates, rng: Draws) -> SimulatedRouter:
        return _Live(router())

    return make_router


ROUTERS: Mapping[str, MakeRouter | None] = {
    "shoal": None,
    "oracle": oracle,
    "round-robin": _live(RoundRobin),
    "least-loaded": _live(LeastLoaded),
    "power-of-two": lambda engines, rng: PowerOfTwo(rng),
    "bounded-hash": lambda engines, rng: BoundedHash(),
    "cache-aware": _live(CacheAware),
    "llm-d": LLMD,
    "llm-d-precise": LLMDPrecise,
    "aibrix": lambda engines, rng: AIBrix(rng),
    "dynamo": Dynamo,
    "dynamo-soft": lambda engines, rng: Dynamo(engines, rng, SOFT_TEMPERATURE),
}
