"""Each in its turn, whatever it has to do."""

from collections.abc import Sequence

from functions.api.ids import EngineName, PoolName
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import Row
from functions.decisions.routing.request import RouteReason


class RoundRobin:
    """One counter a pool."""

    reason: RouteReason = "round_robin"

    def __init__(self) -> None:
        self._turns: dict[PoolName, int] = {}

    def pick(
        self, pool: PoolName, model: EngineName, text_blocks: Sequence[int], rows: Sequence[Row], load: OwnLoad
    ) -> Row:
        turn = self._turns[pool] = self._turns.get(pool, -1) + 1
        return rows[turn % len(rows)]
