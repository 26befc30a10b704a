"""Retry budgets of the pools, and hedging: second attempts beside slow first ones.

A second one begins only where the pool's policy says `hedgeAfter`, only for interactive streams (a whole answer has no
first byte before its end), one at a time, and out of the retry budget, so that a slow pool is not asked twice for
everything. The exchange runs the two; the first that begins to answer is kept and the other one aborted at once. The
tenant is charged for the one that it got.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from functions.api.ids import PoolName
from functions.decisions.routing.choice import Prediction
from functions.decisions.routing.retry import FirstTokens, RetryBudget
from functions.gateway.request.request import Admitted

_MAX_POOLS = 1024


class SentAttempt(Protocol):
    """An attempt, as far as it is late."""

    prediction: Prediction
    begun: bool

    @property
    def sent_s(self) -> float: ...


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

    def __init__(self) -> None:
        self.begun_total = self.won_total = 0
        self._pools: dict[PoolName, FirstTokens] = {}

    def is_late(self, admitted: Admitted, attempt: SentAttempt, now_s: float) -> bool:
        """Whether a first attempt that has not begun to answer should have."""
        after_s = admitted.routing.hedge_after_s
        if after_s is None or admitted.service_class != "interactive" or not admitted.stream or attempt.begun:
            return False
        predicted_s = attempt.prediction.total_ms / 1000
        return now_s - attempt.sent_s >= self._pool(admitted.model.pool).wait_s(predicted_s, after_s)

    def first_token(self, admitted: Admitted, attempt: SentAttempt, now_s: float) -> None:
        """What the attempt's first token took; remembered where somebody will ask."""
        if admitted.routing.hedge_after_s is not None and admitted.stream:
            self._pool(admitted.model.pool).took(attempt.prediction.total_ms / 1000, now_s - attempt.sent_s)

    def _pool(self, pool: PoolName) -> FirstTokens:
        known = self._pools.get(pool)
        if known is None:
            if len(self._pools) >= _MAX_POOLS:
                self._pools.clear()
            known = self._pools[pool] = FirstTokens()
        return known
