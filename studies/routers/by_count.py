"""Routers that use only counts of requests.

round-robin     each replica in turn
least-loaded    the replica with the fewest of this router's requests in flight; among equals the first
power-of-two    two replicas are drawn at random, and the one with fewer of this router's requests is chosen; among
                equals the one drawn first (Mitzenmacher 2001; the default of Ray Serve, and of SGLang's gateway's
                `power_of_two`)
"""

from collections.abc import Sequence

from functions.api.ids import EngineName, PoolName
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import Row
from functions.decisions.routing.request import RouteReason
from functions.simulator.router_port import Draws, Question


class RoundRobin:
    """Round-robin with one counter for each pool."""

    reason: RouteReason = "round_robin"

    def __init__(self) -> None:
        self._turns: dict[PoolName, int] = {}

    def pick(
        self, pool: PoolName, model: EngineName, text_blocks: Sequence[int], rows: Sequence[Row], load: OwnLoad
    ) -> Row:
        turn = self._turns[pool] = self._turns.get(pool, -1) + 1
        return rows[turn % len(rows)]


class LeastLoaded:
    reason: RouteReason = "least_loaded"

    def pick(
        self, pool: PoolName, model: EngineName, text_blocks: Sequence[int], rows: Sequence[Row], load: OwnLoad
    ) -> Row:
        return least_loaded(rows, load)


def least_loaded(rows: Sequence[Row], load: OwnLoad) -> Row:
    return min(rows, key=lambda row: load.in_flight.get(row[0], 0))


class PowerOfTwo:
    def __init__(self, rng: Draws) -> None:
        self._rng = rng

    def pick(self, asked: Question, rows: Sequence[Row], load: OwnLoad) -> Row:
        if len(rows) == 1:
            return rows[0]
        first, second = self._rng.sample(rows, 2)
        return second if load.in_flight.get(second[0], 0) < load.in_flight.get(first[0], 0) else first

    def started(self, key: str) -> None:
        """Do nothing: the router has no state about requests."""

    def ended(self, key: str) -> None:
        """Do nothing: the router has no state about requests."""
