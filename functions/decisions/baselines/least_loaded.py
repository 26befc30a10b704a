"""The one with the fewest requests of this router under way; among equals the first."""

from collections.abc import Sequence

from functions.api.ids import EngineName, PoolName
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import Row
from functions.decisions.routing.request import RouteReason


class LeastLoaded:
    reason: RouteReason = "least_loaded"

    def pick(
        self, pool: PoolName, model: EngineName, text_blocks: Sequence[int], rows: Sequence[Row], load: OwnLoad
    ) -> Row:
        return least_loaded(rows, load)


def least_loaded(rows: Sequence[Row], load: OwnLoad) -> Row:
    return min(rows, key=lambda row: load.in_flight.get(row[0], 0))
