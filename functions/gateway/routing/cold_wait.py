"""One request's wait for an adapter that no replica has: whether to wait at all, and what becomes of it.

Made by an exchange when it first has to wait; at most `_MAX_WAITS` times, since an adapter may be gone again before it
is used. Neighbours: `exchange` begins, leaves and is told; `cold_load` has the adapter loaded.
"""

from collections.abc import Callable, Mapping

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.decisions.routing.choice import NoReplica, ReplicaView, RouteRequest
from functions.decisions.routing.retry import WORTH_A_LOAD, Failure
from functions.gateway.request.request import Admitted
from functions.gateway.routing.adapter_loads import ColdFailed, ColdLoads

_MAX_WAITS = 2
Tried = Mapping[ReplicaId, Failure | None]  # replicas, and how the attempt there failed; None: it has not


def lacks_adapter(decision: NoReplica, failures: tuple[Failure, ...], tried: Tried) -> bool:
    """Whether what is missing is the adapter, rather than replicas."""
    if not WORTH_A_LOAD.issuperset(failures):
        return False
    return decision.reason == "adapter_not_loaded" or (decision.reason == "all_tried" and bool(_lacking(tried)))


def failed_otherwise(tried: Tried) -> dict[ReplicaId, Failure | None]:
    """Without those who only lacked the adapter: another one they may have."""
    return {each: failure for each, failure in tried.items() if failure is not Failure.ADAPTER_MISSING}


def _lacking(tried: Tried) -> frozenset[ReplicaId]:
    return frozenset(each for each, failure in tried.items() if failure is Failure.ADAPTER_MISSING)


class ColdWait:
    """`loaded` and `failed` are called at the end of a wait that was not left, with the seconds that it took.

    Without `cold` there is nobody to ask.
    """

    __slots__ = ("_clock", "_cold", "_engine_name", "_failed", "_loaded", "_pool", "_since_s", "_waits")

    def __init__(
        self,
        cold: ColdLoads | None,
        clock: Callable[[], float],
        *,
        loaded: Callable[[ReplicaView, float], None],
        failed: Callable[[ColdFailed, float], None],
    ) -> None:
        self._cold = cold
        self._clock = clock
        self._loaded = loaded
        self._failed = failed
        self._waits = 0
        self._since_s: float | None = None
        self._pool, self._engine_name = PoolName(""), EngineName("")

    @property
    def waiting(self) -> bool:
        return self._since_s is not None

    def begin(self, request: RouteRequest, admitted: Admitted, tried: Tried) -> ColdFailed | None:
        """Wait; or why not, at once."""
        if self._cold is None or self._waits >= _MAX_WAITS:
            return ColdFailed("no_replica")
        self._waits += 1
        self._pool, self._engine_name = admitted.model.pool, request.engine_name
        excluded, lacking = frozenset(failed_otherwise(tried)), _lacking(tried)
        refused = self._cold.wait(self, request, self._pool, admitted.routing, excluded, lacking=lacking)
        if refused is None:
            self._since_s = self._clock()
        return refused

    def leave(self) -> None:
        """The request ends; the load goes on for others."""
        if self._since_s is not None and self._cold is not None:
            self._since_s = None
            self._cold.leave(self, self._pool, self._engine_name)

    # what the load says

    def adapter_loaded(self, replica: ReplicaView) -> None:
        if self._since_s is not None:
            self._loaded(replica, self._over(self._since_s))

    def adapter_not_loaded(self, failed: ColdFailed) -> None:
        if self._since_s is not None:
            self._failed(failed, self._over(self._since_s))

    def _over(self, since_s: float) -> float:
        self._since_s = None
        return self._clock() - since_s
