"""What another router's algorithm is asked."""

from collections.abc import Sequence
from typing import Protocol

from functions.api.ids import EngineName, PoolName
from functions.decisions.own_load import OwnLoad
from functions.decisions.replicas import Row
from functions.decisions.routing_request import RouteReason


class Baseline(Protocol):
    reason: RouteReason

    def pick(
        self, pool: PoolName, model: EngineName, text_blocks: Sequence[int], rows: Sequence[Row], load: OwnLoad
    ) -> Row:
        """One of `rows`, which are never empty and in the order of their ids."""
