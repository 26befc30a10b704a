"""Port for a component that may reject or move a request before admission, such as an overload ladder under test."""

from typing import NamedTuple, Protocol

from functions.api.ids import PoolName
from functions.simulator.workload.request import WorkloadRequest


class Shed(NamedTuple):
    """The request is rejected."""

    reason: str


class Steering(Protocol):
    def steer(self, request: WorkloadRequest, pool: PoolName, now_s: float) -> Shed | PoolName | None:
        """Return a rejection, another pool, or None to leave the request where it is."""
