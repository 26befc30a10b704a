"""Who may turn a request away, or to another pool, before it comes to a waiting room: a ladder under trial, say."""

from typing import NamedTuple, Protocol

from functions.api.ids import PoolName
from functions.simulator.workload.request import WorkloadRequest


class Shed(NamedTuple):
    """It is refused."""

    reason: str


class Steering(Protocol):
    def steer(self, request: WorkloadRequest, pool: PoolName, now_s: float) -> Shed | PoolName | None:
        """None: it goes where it is to go."""
