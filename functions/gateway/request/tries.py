"""Attempts of one request: those under way, which replicas were tried, and how they failed.

Usually one at a time. Two where the first one is late (`hedging`): the first that begins to answer is kept, and the
other one aborted at once. `tried` and `failures` are of the pool where the request is, and begin anew in another one;
`all_failures` and `count` are of the whole request.

Neighbours: `exchange` says when to begin one and when to stop; `attempt` is one of them on the wire.
"""

import logging
from collections.abc import Callable

import msgspec

from functions.api.ids import ReplicaId
from functions.api.snapshot import FallbackWhen
from functions.decisions.routing.choice import Prediction
from functions.decisions.routing.retry import EVIDENCE, Failure
from functions.gateway.request.answers import Renaming
from functions.gateway.request.attempt import Attempt, Owner
from functions.gateway.request.request import Admitted
from functions.gateway.services import Services

_log = logging.getLogger(__name__)
_NEVER_S = float("inf")


class Tries(msgspec.Struct, eq=False):
    _services: Services
    tried: dict[ReplicaId, Failure | None] = {}  # in this pool, and how it failed
    failures: tuple[Failure, ...] = ()  # in this pool
    all_failures: tuple[Failure, ...] = ()
    attempt: Attempt | None = None  # the one under way, or the last one
    second: Attempt | None = None  # beside a slow first one, until one of them begins to answer
    count: int = 0

    def begin(
        self,
        owner: Owner,
        admitted: Admitted,
        decision: Prediction,
        renaming: Renaming,
        begins: Callable[[Attempt], None] | None = None,
    ) -> None:
        """`begins` is told of the attempt before anything becomes of it."""
        self.tried[decision.replica.id] = None
        self.count += 1
        self.attempt = Attempt(self._services, owner, admitted, decision, renaming)
        if begins is not None:
            begins(self.attempt)
        self.attempt.begin()

    def begin_second(self, owner: Owner, admitted: Admitted, decision: Prediction, renaming: Renaming) -> None:
        """Beside the one under way."""
        self.tried[decision.replica.id] = None
        self.count += 1
        self._services.hedging.begun_total += 1
        self.second = Attempt(self._services, owner, admitted, decision, renaming)
        self.second.begin()

    def keep_only(self, winner: Attempt, admitted: Admitted) -> None:
        """It has begun to answer; where there are two, the other one is dropped."""
        first, second = self.attempt, self.second
        if second is None:
            return
        self.attempt, self.second = winner, None
        loser = second
        if winner is second:
            self._services.hedging.won_total += 1
            loser = first or second
        loser.drop()
        self._services.usage.lost_attempt(loser, self._services.clock())
        lost_tokens = admitted.features.prompt_tokens - loser.prediction.cached_tokens
        self._services.metrics.hedge_lost(admitted.model.pool, max(0, lost_tokens))

    def goes_on_without(self, failed: Attempt) -> bool:
        """Whether another attempt is still under way."""
        other = self.second if failed is self.attempt else self.attempt
        self.second = None
        if other is None or other.over:
            return False
        self.attempt = other
        return True

    def failed(self, attempt: Attempt, admitted: Admitted, failure: Failure, detail: str) -> None:
        """Remembered here, and against the replica."""
        services, replica_id = self._services, attempt.replica.id
        self.failures += (failure,)
        self.all_failures += (failure,)
        self.tried[replica_id] = failure
        services.metrics.attempt_failed(failure)
        out_s = services.router.failed(replica_id, failure, attempt.retry_after_s, is_evidence=failure in EVIDENCE)
        _log.warning(
            "request %s: replica %s failed (%s: %s), out for %.0f s",
            admitted.request_id,
            replica_id,
            failure.value,
            detail,
            out_s,
        )

    def disregard(self, attempt: Attempt, failure: Failure) -> None:
        """It failed by what the gateway has put into the request: that replica may be asked again, without it."""
        self.failures = self.failures[:-1]
        if failure not in EVIDENCE and failure is not Failure.REPLICA_LOST:
            self.tried.pop(attempt.replica.id, None)

    @property
    def pool_is(self) -> FallbackWhen:
        """What is wrong with the pool, after the last failure."""
        return "saturated" if self.failures[-1:] == (Failure.OVERLOADED,) else "unavailable"

    def at(self, replica_id: ReplicaId) -> Attempt | None:
        """The one under way there."""
        for attempt in (self.attempt, self.second):
            if attempt is not None and not attempt.over and attempt.replica.id == replica_id:
                return attempt
        return None

    def drop(self) -> None:
        """Both, silently."""
        if self.second is not None and not self.second.over:
            self._services.usage.lost_attempt(self.second, self._services.clock())
        for attempt in (self.attempt, self.second):
            if attempt is not None and not attempt.over:
                attempt.drop()

    def leave_pool(self) -> None:
        """The request goes to another pool, where nobody has been tried."""
        self.drop()
        self.attempt = self.second = None
        self.tried, self.failures = {}, ()

    # the clock

    def give_up_silent(self, now_s: float, *, stream: bool) -> bool:
        """Whether the engine was silent for too long, and the attempt with it was given up."""
        limits, attempt = self._services.limits, self.attempt
        if attempt is None or attempt.over:
            return False  # what the request waits for has its own time
        silent_s = now_s - attempt.waiting_since_s
        if attempt.begun:
            if silent_s <= limits.idle_s:
                return False
            attempt.break_off(Failure.SILENT, f"silent for {limits.idle_s} s in its stream")
        elif not stream or silent_s <= limits.first_byte_s:
            return False
        else:
            attempt.fail(Failure.FIRST_BYTE, f"no first byte in {limits.first_byte_s} s")
        return True

    def is_late(self, admitted: Admitted, now_s: float) -> bool:
        """Whether it is time for a second attempt."""
        attempt = self.attempt
        if attempt is None or attempt.over or self.second is not None:
            return False
        return self._services.hedging.is_late(admitted, attempt, now_s)

    def due_s(self, admitted: Admitted, now_s: float) -> float:
        """Before this neither of the two is true, unless another attempt begins; monotonic."""
        limits, attempt = self._services.limits, self.attempt
        if attempt is None or attempt.over:
            return _NEVER_S
        if attempt.begun:
            return attempt.waiting_since_s + limits.idle_s
        if admitted.stream and admitted.routing.hedge_after_s is not None:
            return 0.0  # how late is too late moves with the pool's first tokens
        given_up_s = attempt.waiting_since_s + min(limits.first_byte_s, limits.idle_s) if admitted.stream else _NEVER_S
        if self.second is not None:
            return given_up_s
        return min(given_up_s, self._services.hedging.look_again_s(admitted, attempt, now_s))
