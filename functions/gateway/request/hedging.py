"""Retry budgets of the pools, and hedging: a second attempt beside a slow one or one whose replica is silent.

A slow attempt is hedged only if the pool's policy sets `hedgeAfter`, and only for interactive streams, because a
whole answer has no early first byte. An attempt on a replica that sends nothing at all (`routing.silence`) is hedged
under any policy, for whole answers too, except for batch requests. There is one hedge at a time, paid from the retry
budget, so that a slow pool does not get every request twice. The exchange runs both attempts. It keeps the first that
begins to answer and aborts the other. The tenant pays for the attempt that answered.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from functions.api.ids import PoolName
from functions.decisions.routing.choice import Prediction, ReplicaView
from functions.decisions.routing.retry import FirstTokens, RetryBudget
from functions.gateway.request.request import Admitted
from functions.gateway.routing.silence import MUTE_AFTER_S, WHOLE_MUTE_AFTER_S, Silence

_MAX_POOLS = 1024


class SentAttempt(Protocol):
    """The part of an attempt that is needed to judge whether it is late."""

    prediction: Prediction
    replica: ReplicaView
    begun: bool
    sent_s: float


class RetryBudgets:
    """Retry budgets of the snapshot's pools: retries are a limited share of the requests (`retry.RetryBudget`)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pools: dict[PoolName, RetryBudget] = {}

    def swap(self, pools: Iterable[PoolName]) -> None:
        """Apply a new snapshot's pools: those that remain keep their retry budget, new ones get a fresh one."""
        now_s = self._clock()
        self._pools = {pool: self._pools.get(pool) or RetryBudget(updated_s=now_s) for pool in pools}

    def on_request(self, admitted: Admitted, now_s: float) -> None:
        budget = self._pools.get(admitted.model.pool)
        if budget is not None:
            budget.on_request(admitted.routing.retry_budget_ratio, now_s)

    def try_spend(self, admitted: Admitted, now_s: float) -> bool:
        """Return True if one retry was spent from the pool's budget. A pool that is gone has no budget."""
        budget = self._pools.get(admitted.model.pool) or RetryBudget(tokens=0.0, updated_s=now_s)
        return budget.try_spend(admitted.routing.retry_budget_ratio, now_s)


class Hedging:
    """Judge which first attempts are late. Owned by one event loop; times are monotonic seconds."""

    def __init__(self, silence: Silence) -> None:
        self.begun_total = self.won_total = 0
        self._silence = silence
        self._pools: dict[PoolName, FirstTokens] = {}

    def is_late(self, admitted: Admitted, attempt: SentAttempt, now_s: float) -> bool:
        """Return True if a first attempt needs a hedge: its replica is mute, or its first token is late.

        A mute replica is marked so. Batch requests need no hedge, others than interactive streams only for a mute one.
        """
        if attempt.begun:
            return False
        if self._is_replica_mute(admitted, attempt, now_s):
            self._silence.mark_mute(attempt.replica.id)
            return admitted.service_class != "batch"
        after_s = admitted.routing.hedge_after_s
        if after_s is None or admitted.service_class != "interactive" or not admitted.stream:
            return False
        return now_s - attempt.sent_s >= self._wait_s(admitted, attempt, after_s)

    def next_check_s(self, admitted: Admitted, attempt: SentAttempt, now_s: float) -> float:
        """Return the monotonic time in seconds before which the attempt's replica cannot be found silent."""
        if not admitted.stream:
            return now_s + MUTE_AFTER_S
        quiet_s = self._silence.quiet_s(attempt.replica.id, attempt.sent_s, now_s)
        return now_s - quiet_s + self._wait_s(admitted, attempt, MUTE_AFTER_S)

    def first_token(self, admitted: Admitted, attempt: SentAttempt, now_s: float) -> None:
        """Record a stream's time to first token in its pool, with the predicted one, for the hedging delay."""
        self._pool(admitted.model.pool).record_first_token(attempt.prediction.total_ms / 1000, now_s - attempt.sent_s)

    def _is_replica_mute(self, admitted: Admitted, attempt: SentAttempt, now_s: float) -> bool:
        quiet_s = self._silence.quiet_s(attempt.replica.id, attempt.sent_s, now_s)
        if admitted.stream:
            return quiet_s >= self._wait_s(admitted, attempt, MUTE_AFTER_S)
        return quiet_s >= WHOLE_MUTE_AFTER_S and self._silence.expects_bytes(attempt.replica.id)

    def _wait_s(self, admitted: Admitted, attempt: SentAttempt, least_s: float) -> float:
        return self._pool(admitted.model.pool).wait_s(attempt.prediction.total_ms / 1000, least_s)

    def _pool(self, pool: PoolName) -> FirstTokens:
        known = self._pools.get(pool)
        if known is None:
            if len(self._pools) >= _MAX_POOLS:
                self._pools.clear()
            known = self._pools[pool] = FirstTokens()
        return known
