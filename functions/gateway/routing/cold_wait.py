"""Wait of one request for an adapter that no replica has: whether to wait, and what follows.

An exchange creates it when it first has to wait. It waits at most `_MAX_WAITS` times, because an adapter may be
evicted again before it is used. `exchange` starts and leaves the wait and is notified; `adapter_loads` requests the
load.
"""

from collections.abc import Callable, Mapping

from functions.api.ids import ReplicaId
from functions.api.snapshot import FallbackWhen
from functions.decisions.routing.choice import NoReplica, ReplicaView
from functions.decisions.routing.retry import WORTH_A_LOAD, AttemptFailure
from functions.gateway.errors import ErrorAnswer
from functions.gateway.request import replies
from functions.gateway.request.request import Admitted, Timeline
from functions.gateway.routing.adapter_loads import ColdFailed, ColdLoads

_MAX_WAITS = 2
Tried = Mapping[ReplicaId, AttemptFailure | None]  # failure of the attempt on each replica; None: it has not failed


def lacks_adapter(decision: NoReplica, failures: tuple[AttemptFailure, ...], tried: Tried) -> bool:
    """Return True if only the adapter (or version) is missing on the replicas, so that a load may help."""
    if not WORTH_A_LOAD.issuperset(failures):
        return False
    return decision.reason in ("adapter_not_loaded", "weights_not_loaded") or (
        decision.reason == "all_tried" and bool(_lacking(tried))
    )


def failed_otherwise(tried: Tried) -> dict[ReplicaId, AttemptFailure | None]:
    """Return the tried replicas and their failures, without those that only lacked the adapter."""
    return {each: failure for each, failure in tried.items() if failure is not AttemptFailure.ADAPTER_MISSING}


def _lacking(tried: Tried) -> frozenset[ReplicaId]:
    return frozenset(each for each, failure in tried.items() if failure is AttemptFailure.ADAPTER_MISSING)


class ColdWait:
    """Wait for an adapter. At its end `loaded` or `failed` is called, unless the wait was left.

    The waiting time is added to the timeline. `failed` receives the reason for fallback, the error answer and the
    label of shoal_shed_total. Without `loads` every wait fails.
    """

    __slots__ = ("_admitted", "_clock", "_failed", "_loaded", "_loads", "_since_s", "_timeline", "_waits")

    def __init__(
        self,
        loads: ColdLoads | None,
        clock: Callable[[], float],
        timeline: Timeline,
        *,
        loaded: Callable[[ReplicaView], None],
        failed: Callable[[FallbackWhen, ErrorAnswer, str], None],
    ) -> None:
        self._loads = loads
        self._clock = clock
        self._timeline = timeline
        self._loaded = loaded
        self._failed = failed
        self._waits = 0
        self._since_s: float | None = None
        self._admitted: Admitted | None = None

    @property
    def waiting(self) -> bool:
        return self._since_s is not None

    def start(self, admitted: Admitted, tried: Tried) -> None:
        """Wait for the adapter, or report the failure immediately if a wait makes no sense or there were too many."""
        self._admitted = admitted
        if self._loads is None or self._waits >= _MAX_WAITS:
            self._fail(admitted, ColdFailed("no_replica"))
            return
        self._waits += 1
        refused = self._loads.wait(
            self,
            admitted.route_request(),
            admitted.model.pool,
            admitted.routing,
            frozenset(failed_otherwise(tried)),
            lacking=_lacking(tried),
        )
        if refused is None:
            self._since_s = self._clock()
        else:
            self._fail(admitted, refused)

    def leave(self) -> None:
        """Stop waiting because the request ends. The load continues for other requests."""
        if self._since_s is not None and self._loads is not None and self._admitted is not None:
            self._since_s = None
            self._loads.leave(self, self._admitted.model.pool, self._admitted.model.engine_name)

    # reports of the load

    def adapter_loaded(self, replica: ReplicaView) -> None:
        if self._is_over():
            self._loaded(replica)

    def adapter_not_loaded(self, failed: ColdFailed) -> None:
        if self._is_over() and self._admitted is not None:
            self._fail(self._admitted, failed)

    def _is_over(self) -> bool:
        """End the wait, add its time to the timeline and return True; return False if it was left before."""
        if self._since_s is None:
            return False
        self._timeline.load_s += self._clock() - self._since_s
        self._since_s = None
        return True

    def _fail(self, admitted: Admitted, failed: ColdFailed) -> None:
        when: FallbackWhen = "saturated" if failed.outcome in ("no_room", "too_many", "held_back") else "unavailable"
        self._failed(when, replies.not_loaded(failed, admitted), "adapter_not_loaded")
