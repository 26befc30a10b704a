"""Retry budgets of the pools, and hedging: second attempts beside first ones that are slow, or whose replica is mute.

Beside a slow one, a second begins only where the pool's policy says `hedgeAfter`, and only for interactive streams (a
whole answer has no first byte before its end). Beside one whose replica says nothing to anybody (`routing.silence`) it
begins under any policy, for whole answers too, and for all but batches. Either way one at a time, and out of the retry
budget, so that a slow pool is not asked twice for everything. The exchange runs the two; the first that begins to
answer is kept and the other one aborted at once. The tenant is charged for the one that it got.
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
    """An attempt, as far as it is late."""

    prediction: Prediction
    replica: ReplicaView
    begun: bool
    sent_s: float


class RetryBudgets:
    """Of the snapshot's pools: attempts after the first are a part of the requests that come (`retry.RetryBudget`)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pools: dict[PoolName, RetryBudget] = {}

    def swap(self, pools: Iterable[PoolName]) -> None:
        """A new snapshot; what was saved stays saved."""
        now_s = self._clock()
        self._pools = {pool: self._pools.get(pool) or RetryBudget(updated_s=now_s) for pool in pools}

    def on_request(self, admitted: Admitted, now_s: float) -> None:
        budget = self._pools.get(admitted.model.pool)
        if budget is not None:
            budget.on_request(admitted.routing.retry_budget_ratio, now_s)

    def try_spend(self, admitted: Admitted, now_s: float) -> bool:
        """Take one retry out of the budget, where there is one; a pool that is gone has none."""
        budget = self._pools.get(admitted.model.pool) or RetryBudget(tokens=0.0, updated_s=now_s)
        return budget.try_spend(admitted.routing.retry_budget_ratio, now_s)


class Hedging:
    """Owned by one event loop. Times are monotonic seconds."""

    def __init__(self, silence: Silence) -> None:
        self.begun_total = self.won_total = 0
        self._silence = silence
        self._pools: dict[PoolName, FirstTokens] = {}

    def is_late(self, admitted: Admitted, attempt: SentAttempt, now_s: float) -> bool:
        """Whether a first attempt that has not begun to answer should have, or will not soon."""
        if attempt.begun:
            return False
        if self._is_in_vain(admitted, attempt, now_s):
            self._silence.found_mute(attempt.replica.id)
            return admitted.service_class != "batch"
        after_s = admitted.routing.hedge_after_s
        if after_s is None or admitted.service_class != "interactive" or not admitted.stream:
            return False
        return now_s - attempt.sent_s >= self._wait_s(admitted, attempt, after_s)

    def look_again_s(self, admitted: Admitted, attempt: SentAttempt, now_s: float) -> float:
        """Before this its replica cannot be found mute."""
        if not admitted.stream:
            return now_s + MUTE_AFTER_S
        quiet_s = self._silence.quiet_s(attempt.replica.id, attempt.sent_s, now_s)
        return now_s - quiet_s + self._wait_s(admitted, attempt, MUTE_AFTER_S)

    def first_token(self, admitted: Admitted, attempt: SentAttempt, now_s: float) -> None:
        """What a stream's first token took."""
        self._pool(admitted.model.pool).took(attempt.prediction.total_ms / 1000, now_s - attempt.sent_s)

    def _is_in_vain(self, admitted: Admitted, attempt: SentAttempt, now_s: float) -> bool:
        quiet_s = self._silence.quiet_s(attempt.replica.id, attempt.sent_s, now_s)
        if admitted.stream:
            return quiet_s >= self._wait_s(admitted, attempt, MUTE_AFTER_S)
        return quiet_s >= WHOLE_MUTE_AFTER_S and self._silence.ought_to_speak(attempt.replica.id)

    def _wait_s(self, admitted: Admitted, attempt: SentAttempt, least_s: float) -> float:
        return self._pool(admitted.model.pool).wait_s(attempt.prediction.total_ms / 1000, least_s)

    def _pool(self, pool: PoolName) -> FirstTokens:
        known = self._pools.get(pool)
        if known is None:
            if len(self._pools) >= _MAX_POOLS:
                self._pools.clear()
            known = self._pools[pool] = FirstTokens()
        return known
