"""Attempts of one request: those running, the replicas tried, and how they failed.

There is usually one attempt at a time, and two while a late one is hedged (`hedging`). The first that begins to
answer is kept and the other is aborted. `tried` and `failures` cover the current pool and start empty in another
pool. `all_failures` and `count` cover the whole request.

`exchange` decides when to start and stop attempts; `attempt` is one of them on the wire.
"""

import logging
from collections.abc import Callable

import msgspec

from functions.api.ids import ReplicaId
from functions.api.snapshot import FallbackWhen
from functions.decisions.routing.choice import Prediction
from functions.decisions.routing.retry import EVIDENCE, AttemptFailure
from functions.gateway.request.answers import Renaming
from functions.gateway.request.attempt import Attempt, Owner
from functions.gateway.request.request import Admitted
from functions.gateway.services import Services

_log = logging.getLogger(__name__)
_NEVER_S = float("inf")


class Tries(msgspec.Struct, eq=False):
    _services: Services
    tried: dict[ReplicaId, AttemptFailure | None] = {}  # replicas tried in this pool, and how each failed
    failures: tuple[AttemptFailure, ...] = ()  # failures in this pool
    all_failures: tuple[AttemptFailure, ...] = ()
    attempt: Attempt | None = None  # the running attempt, or the last one
    second: Attempt | None = None  # hedge beside a slow first attempt, until one of them begins to answer
    count: int = 0

    def start_attempt(
        self,
        owner: Owner,
        admitted: Admitted,
        decision: Prediction,
        renaming: Renaming,
        begins: Callable[[Attempt], None] | None = None,
    ) -> None:
        """Start an attempt as the current one and count its replica as tried; `begins` is called with it first."""
        self.tried[decision.replica.id] = None
        self.count += 1
        self.attempt = Attempt(self._services, owner, admitted, decision, renaming)
        if begins is not None:
            begins(self.attempt)
        self.attempt.start()

    def start_hedge(self, owner: Owner, admitted: Admitted, decision: Prediction, renaming: Renaming) -> None:
        """Start a hedge, the second attempt, beside the running one, and count it and its replica as tried."""
        self.tried[decision.replica.id] = None
        self.count += 1
        self._services.hedging.begun_total += 1
        self.second = Attempt(self._services, owner, admitted, decision, renaming)
        self.second.start()

    def keep_only(self, winner: Attempt, admitted: Admitted) -> None:
        """Keep the attempt that has begun to answer; drop the other one, if there is one, and count its lost work."""
        first, second = self.attempt, self.second
        if second is None:
            return
        self.attempt, self.second = winner, None
        loser = second
        if winner is second:
            self._services.hedging.won_total += 1
            loser = first or second
        loser.drop()
        self._services.usage.count_lost_attempt(loser, self._services.clock())
        lost_tokens = admitted.features.prompt_tokens - loser.prediction.cached_tokens
        self._services.metrics.hedge_lost(admitted.model.pool, max(0, lost_tokens))

    def continue_without(self, failed: Attempt) -> bool:
        """Return True if another attempt than the failed one still runs, and make it the only one."""
        other = self.second if failed is self.attempt else self.attempt
        self.second = None
        if other is None or other.over:
            return False
        self.attempt = other
        return True

    def failed(self, attempt: Attempt, admitted: Admitted, failure: AttemptFailure, detail: str) -> None:
        """Record and log the failure of an attempt, here, in the metrics and against the replica."""
        services, replica_id = self._services, attempt.replica.id
        self.failures += (failure,)
        self.all_failures += (failure,)
        self.tried[replica_id] = failure
        services.metrics.attempt_failed(failure)
        out_s = services.router.record_failure(
            replica_id, failure, attempt.retry_after_s, is_evidence=failure in EVIDENCE
        )
        _log.warning(
            "request %s: replica %s failed (%s: %s), out for %.0f s",
            admitted.request_id,
            replica_id,
            failure.value,
            detail,
            out_s,
        )

    def disregard(self, attempt: Attempt, failure: AttemptFailure) -> None:
        """Forget the last failure, which something that the gateway added caused.

        The replica may be tried again, unless the failure is evidence against it.
        """
        self.failures = self.failures[:-1]
        if failure not in EVIDENCE and failure is not AttemptFailure.REPLICA_LOST:
            self.tried.pop(attempt.replica.id, None)

    @property
    def pool_state(self) -> FallbackWhen:
        """State of the pool after the last failure: "saturated" if the engine was overloaded, else "unavailable"."""
        return "saturated" if self.failures[-1:] == (AttemptFailure.OVERLOADED,) else "unavailable"

    def attempt_at(self, replica_id: ReplicaId) -> Attempt | None:
        """Return the running attempt on this replica, or None."""
        for attempt in (self.attempt, self.second):
            if attempt is not None and not attempt.over and attempt.replica.id == replica_id:
                return attempt
        return None

    def drop(self) -> None:
        """End both attempts without a report to their owner; the work of a running hedge is counted as lost."""
        if self.second is not None and not self.second.over:
            self._services.usage.count_lost_attempt(self.second, self._services.clock())
        for attempt in (self.attempt, self.second):
            if attempt is not None and not attempt.over:
                attempt.drop()

    def leave_pool(self) -> None:
        """Drop the attempts and forget the tried replicas, because the request moves to another pool."""
        self.drop()
        self.attempt = self.second = None
        self.tried, self.failures = {}, ()

    # timeouts

    def give_up_silent(self, now_s: float, *, stream: bool) -> bool:
        """Give up the attempt if its engine has been silent for too long; return True if it was given up.

        Answers that are not streamed are not given up.
        """
        limits, attempt = self._services.limits, self.attempt
        if attempt is None or attempt.over:
            return False  # other waits have their own timeout
        silent_s = now_s - attempt.waiting_since_s
        if attempt.begun:
            if silent_s <= limits.idle_s:
                return False
            attempt.break_off(AttemptFailure.SILENT, f"silent for {limits.idle_s} s in its stream")
        elif not stream or silent_s <= limits.first_byte_s:
            return False
        else:
            attempt.fail(AttemptFailure.FIRST_BYTE, f"no first byte in {limits.first_byte_s} s")
        return True

    def is_late(self, admitted: Admitted, now_s: float) -> bool:
        """Return True if the only running attempt is so late that it is time for a hedge."""
        attempt = self.attempt
        if attempt is None or attempt.over or self.second is not None:
            return False
        return self._services.hedging.is_late(admitted, attempt, now_s)

    def due_s(self, admitted: Admitted, now_s: float) -> float:
        """Return the monotonic time before which `give_up_silent` and `is_late` are False, unless an attempt starts."""
        limits, attempt = self._services.limits, self.attempt
        if attempt is None or attempt.over:
            return _NEVER_S
        if attempt.begun:
            return attempt.waiting_since_s + limits.idle_s
        if admitted.stream and admitted.routing.hedge_after_s is not None:
            return 0.0  # the hedging delay changes with the pool's times to first token
        given_up_s = attempt.waiting_since_s + min(limits.first_byte_s, limits.idle_s) if admitted.stream else _NEVER_S
        if self.second is not None:
            return given_up_s
        return min(given_up_s, self._services.hedging.next_check_s(admitted, attempt, now_s))
